"""Price options by simulation. `vmap` prices a row of strikes, `grad` gives the sensitivities.

The prices of the Black-Scholes formula are the reference.
"""

import yosegi as ys

SPOT, RATE, VOLATILITY, YEARS = 100.0, 0.03, 0.2, 1.0


def simulated(spot, strike, normals):
    """The mean discounted payoff of a call, with each draw and its mirror image."""
    z = ys.concat([normals, -normals])
    final = spot * ys.exp((RATE - VOLATILITY**2 / 2) * YEARS + VOLATILITY * YEARS**0.5 * z)
    return ys.exp(-RATE * YEARS) * ys.mean(ys.maximum(final - strike, 0.0))


def formula(spot, strike):
    """The price of Black and Scholes."""

    def normal_cdf(x):
        return (1 + ys.nn.erf(x / 2**0.5)) / 2

    width = VOLATILITY * YEARS**0.5
    d1 = (ys.log(spot / strike) + (RATE + VOLATILITY**2 / 2) * YEARS) / width
    return spot * normal_cdf(d1) - strike * ys.exp(-RATE * YEARS) * normal_cdf(d1 - width)


normals = ys.random.default_rng(0).normal((200_000,))
strikes = ys.asarray([80.0, 90.0, 100.0, 110.0, 120.0])
spot = ys.asarray(SPOT)


@ys.jit
def price_and_delta(spot, strikes, normals):
    """For each strike: the price, and its derivative by the spot."""
    return ys.vmap(ys.value_and_grad(simulated), in_axes=(None, 0, None))(spot, strikes, normals)


prices, deltas = price_and_delta(spot, strikes, normals)
exact = formula(spot, strikes)
exact_deltas = ys.vmap(ys.grad(formula), in_axes=(None, 0))(spot, strikes)

print("strike  price  exact  delta  exact")
for row in ys.stack([strikes, prices, exact, deltas, exact_deltas], axis=1).tolist():
    print("{:6.0f} {:6.2f} {:6.2f} {:6.3f} {:6.3f}".format(*row))
assert ys.allclose(prices, exact, atol=0.05)
assert ys.allclose(deltas, exact_deltas, atol=0.005)
