"""Group points by k-means, with `while_loop` until no point changes its group."""

import yosegi as ys

rng = ys.random.default_rng(3)
truth = ys.asarray([[0.0, 0.0], [6.0, 1.0], [2.0, 7.0], [-5.0, 4.0]])
members = rng.integers(0, 4, size=2000)
points = truth[members] + rng.normal((2000, 2))


def nearest(points, centres):
    """Return the index of the nearest centre of each point."""
    return ys.argmin(ys.sum((points[:, None, :] - centres) ** 2, axis=-1), axis=1)


def spread(points, count):
    """Choose first centres far from each other: each is the point farthest from those before it."""
    chosen = points[:1]
    for _ in range(count - 1):
        distance = ys.min(ys.sum((points[:, None, :] - chosen) ** 2, axis=-1), axis=1)
        chosen = ys.concat([chosen, points[ys.argmax(distance)][None]])
    return chosen


@ys.jit
def k_means(points, centres):
    """Return the centres, the group of each point and the number of rounds."""

    def changed(state):
        _, group, before, rounds = state
        return ys.any(group != before) & (rounds < 100)

    def improve(state):
        centres, group, _, rounds = state
        belongs = ys.nn.one_hot(group, centres.shape[0], dtype=points.dtype)
        centres = belongs.T @ points / ys.sum(belongs, axis=0)[:, None]
        return centres, nearest(points, centres), group, rounds + 1

    group = nearest(points, centres)
    centres, group, _, rounds = ys.while_loop(changed, improve, (centres, group, group - 1, 0))
    return centres, group, rounds


centres, group, rounds = k_means(points, spread(points, 4))
match = nearest(truth, centres)  # the group found for each true centre
error = ys.max(ys.abs(centres[match] - truth))
agreement = ys.mean(ys.astype(match[members] == group, ys.float64))

print(f"the largest error of a centre is {float(error):.2f}")
print(f"{100 * float(agreement):.1f}% of the points are in their true group")
assert int(rounds) < 100
assert float(error) < 0.15
assert float(agreement) > 0.98
