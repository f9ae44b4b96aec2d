"""Fit a logistic regression by Newton's method: the gradient and the Hessian come from transforms."""

import yosegi as ys

rng = ys.random.default_rng(0)
truth = ys.asarray([1.5, -2.0, 0.5, 0.0])
features = rng.normal((5000, 4))
labels = ys.astype(rng.uniform(size=5000) < ys.nn.sigmoid(features @ truth), ys.float64)


def loss(weights):
    """The mean negative log likelihood, with a small penalty."""
    scores = features @ weights
    return ys.mean(ys.nn.softplus(scores) - labels * scores) + 1e-6 * ys.sum(weights**2)


@ys.jit
def newton(weights):
    return weights - ys.linalg.solve(ys.hessian(loss)(weights), ys.grad(loss)(weights))


weights = ys.zeros(4)
for _ in range(8):
    weights = newton(weights)

# The inverse of the Fisher information is the covariance of the estimate.
deviation = ys.sqrt(ys.diagonal(ys.linalg.inv(5000 * ys.hessian(loss)(weights))))
for w, d, t in zip(weights.tolist(), deviation.tolist(), truth.tolist(), strict=True):
    print(f"weight {w:5.2f} ± {d:.2f}, truth {t:4.1f}")

accuracy = ys.mean(ys.astype((features @ weights > 0) == (labels > 0.5), ys.float64))
print(f"accuracy {100 * float(accuracy):.1f}%")
assert float(ys.linalg.vector_norm(ys.grad(loss)(weights))) < 1e-10
assert bool(ys.all(ys.abs(weights - truth) < 4 * deviation))
