"""Complete a matrix of ratings by alternating least squares.

A fifth of the entries is known. Each round solves one small ridge regression per row, all of them at once by `vmap`.
"""

import yosegi as ys

USERS, ITEMS, RANK = 300, 200, 4
rng = ys.random.default_rng(0)
truth = rng.normal((USERS, RANK)) @ rng.normal((RANK, ITEMS))
known = rng.uniform(size=(USERS, ITEMS)) < 0.2
ratings = ys.where(known, truth + 0.1 * rng.normal((USERS, ITEMS)), 0.0)
weights = ys.astype(known, ys.float64)


def ridge(factors, ratings, weights):
    """The weighted ridge regression of one row of ratings on the factors of the other side."""
    weighted = factors * weights[:, None]
    return ys.linalg.solve(weighted.T @ factors + 0.1 * ys.eye(RANK), weighted.T @ ratings)


every_row = ys.vmap(ridge, in_axes=(None, 0, 0))


@ys.jit
def alternate(items):
    """New factors of the users, then of the items."""
    users = every_row(items, ratings, weights)
    return users, every_row(users, ratings.T, weights.T)


def rmse(users, items, where):
    return float(ys.sqrt(ys.sum(where * (users @ items.T - truth) ** 2) / ys.sum(where)))


items = rng.normal((ITEMS, RANK))
for round in range(15):
    users, items = alternate(items)
    if round in (0, 4, 14):
        print(f"round {round + 1:2d}: the unknown ratings are off by {rmse(users, items, 1 - weights):.2f}")

spread = float(ys.std(truth))
print(f"always guessing the mean is off by {spread:.2f}")
assert rmse(users, items, 1 - weights) < 0.1 * spread
