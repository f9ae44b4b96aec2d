"""The polynomials of the error function, for everyone who computes it.

Near 0 it is x plus x times a polynomial in x**2. Further out it is 1 - exp(-x**2) times a polynomial in 1 / (x + 2),
and where nothing is left to take away, 1. The polynomials are Chebyshev interpolations, made in 50 digits; the error
stays within about one unit in the last place.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Fit(NamedTuple):
    """Coefficients, lowest power first, for magnitudes below 1, and from there to `end` in scale / (x + 2) - shift."""

    near: tuple[float, ...]
    far: tuple[float, ...]
    end: float
    scale: float
    shift: float


DOUBLE: Final = Fit(
    (0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
     -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
     -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11),
    (0.2214295402299318, 0.16189356804102537, 0.038560570425181566, 0.0055888162818258785, 0.00019713917776008889,
     -8.079220411804128e-05, -7.340518284999869e-06, 1.979561158209264e-06, 1.6350102372087984e-07,
     -7.005170205475373e-08, -5.926361315281833e-10, 2.622350032514279e-09, -2.634243021000669e-10,
     -7.290508535165398e-11, 1.8620989806815163e-11),
    end=6.0, scale=9.6, shift=2.2,
)  # fmt: skip
SINGLE: Final = Fit(
    (0.1283791670955126, -0.3761262595653534, 0.11283594369888306, -0.02685421146452427, 0.005189087241888046,
     -0.000801686430349946, 7.875874871388078e-05),
    (0.25539568066596985, 0.14239533245563507, 0.026850910857319832, 0.002924752188846469, 4.6078665036475286e-05,
     -2.8029382519889623e-05, -1.149486251961207e-06),
    end=4.0, scale=12.0, shift=3.0,
)  # fmt: skip
