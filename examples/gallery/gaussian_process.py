"""Gaussian process regression: the hyperparameters come from the gradient of the marginal likelihood."""

import numpy as np

import yosegi as ys

rng = ys.random.default_rng(1)
x = ys.sort(rng.uniform(-4, 4, size=60))
y = ys.sin(2 * x) + 0.3 * x + 0.2 * rng.normal((60,))


def kernel(a, b, params):
    """The squared exponential kernel."""
    distance = (a[:, None] - b[None, :]) / ys.exp(params["log_length"])
    return ys.exp(2 * params["log_scale"] - distance**2 / 2)


def covariance(params):
    return kernel(x, x, params) + ys.exp(2 * params["log_noise"]) * ys.eye(x.size)


def loss(params):
    """The negative logarithm of the marginal likelihood, per point."""
    factor = ys.linalg.cholesky(covariance(params))
    white = ys.linalg.solve(factor, y)
    return (ys.sum(white**2) / 2 + ys.sum(ys.log(ys.diagonal(factor)))) / x.size


@ys.jit
def step(params):
    gradients = ys.grad(loss)(params)
    return ys.tree_map(lambda p, g: p - 0.3 * g, params, gradients)


@ys.jit
def predict(params, at):
    """The mean and the standard deviation of the function at new points."""
    cross = kernel(at, x, params)
    solved = ys.linalg.solve(covariance(params), ys.concat([y[:, None], cross.T], axis=1))
    variance = ys.exp(2 * params["log_scale"]) - ys.sum(cross * solved[:, 1:].T, axis=1)
    return cross @ solved[:, 0], ys.sqrt(variance)


params = {"log_length": ys.asarray(0.0), "log_scale": ys.asarray(0.0), "log_noise": ys.asarray(-1.0)}
first = float(loss(params))
for _ in range(150):
    params = step(params)
noise = float(ys.exp(params["log_noise"]))
print(f"fitted noise {noise:.2f}, truth 0.20")
assert float(loss(params)) < first
assert abs(noise - 0.2) < 0.05

at = ys.linspace(-3.5, 3.5, 200)
mean, deviation = predict(params, at)
truth = ys.sin(2 * at) + 0.3 * at
inside = float(ys.mean(ys.astype(ys.abs(mean - truth) < 2 * deviation, ys.float64)))
print(f"the largest error is {float(ys.max(ys.abs(mean - truth))):.2f}")
assert inside > 0.8

weights = np.linalg.solve(covariance(params).numpy(), y.numpy())  # the same mean in NumPy
assert np.allclose(mean.numpy(), kernel(at, x, params).numpy() @ weights)
