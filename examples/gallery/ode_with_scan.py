"""Solve a differential equation with `scan`, and fit its parameters by gradients through the solver.

The oscillator x'' = -k x - d x' is integrated by the classical Runge-Kutta method. Stiffness k and damping d are then
recovered from a noisy measurement of x.
"""

import yosegi as ys

STEPS, DT = 400, 0.05


def slope(state, k, d):
    x, v = state
    return ys.stack([v, -k * x - d * v])


@ys.jit
def trajectory(k, d):
    """The positions after each step, from x = 1 and x' = 0."""

    def step(state, _):
        k1 = slope(state, k, d)
        k2 = slope(state + DT / 2 * k1, k, d)
        k3 = slope(state + DT / 2 * k2, k, d)
        k4 = slope(state + DT * k3, k, d)
        state = state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return state, state[0]

    return ys.scan(step, ys.asarray([1.0, 0.0]), length=STEPS)[1]


k, d = ys.asarray(2.0), ys.asarray(0.3)
t = DT * ys.arange(1, STEPS + 1)
w = ys.sqrt(k - d**2 / 4)
exact = ys.exp(-d * t / 2) * (ys.cos(w * t) + d / (2 * w) * ys.sin(w * t))
error = float(ys.max(ys.abs(trajectory(k, d) - exact)))
print(f"the solver is within {error:.0e} of the exact solution")
assert error < 1e-5

measured = exact + 0.02 * ys.random.default_rng(0).normal((STEPS,))


def residual(p):
    return trajectory(p[0], p[1]) - measured


@ys.jit
def gauss_newton(p):
    jacobian = ys.jacobian(residual)(p)
    return p - ys.linalg.solve(jacobian.T @ jacobian, jacobian.T @ residual(p))


p = ys.asarray([1.9, 0.5])  # the first guess
for _ in range(6):
    p = gauss_newton(p)
print(f"fitted stiffness {float(p[0]):.2f} and damping {float(p[1]):.2f}")
assert ys.allclose(p, ys.stack([k, d]), atol=0.02)
