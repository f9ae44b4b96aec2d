"""Fourier transforms against NumPy's, and their gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError, UserError

NORMS = ["backward", "ortho", "forward"]
COMPLEX_IN = ["fft", "ifft", "irfft", "hfft"]
REAL_IN = ["rfft", "ihfft"]
SINGLE, DOUBLE = [np.float32, np.complex64], [np.float64, np.complex128]


def close(got: ys.Tensor, wanted: Any) -> None:
    array = got.numpy()
    assert (array.shape, array.dtype) == (wanted.shape, wanted.dtype)
    tolerance = 20 * np.finfo(wanted.dtype).eps * max(1.0, float(np.max(np.abs(wanted), initial=0)))
    np.testing.assert_allclose(array, wanted, rtol=0, atol=tolerance)


def test_the_namespace_is_the_standard_s_and_numpys() -> None:
    numpys = {"fft2", "ifft2", "rfft2", "irfft2"}
    assert set(ys.fft.__all__) == numpys | {
        "fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "hfft", "ihfft", "fftfreq", "rfftfreq",
        "fftshift", "ifftshift",
    }  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", COMPLEX_IN + REAL_IN)
def test_one_axis(name: str, norm: str) -> None:
    for dtype in (SINGLE, DOUBLE):
        for shape, axis in [((6,), -1), ((5, 2), 0), ((2, 3, 4), 1), ((0, 4), -1)]:
            x = random(shape, dtype[name in COMPLEX_IN])
            for n in (None, 3, 4, 9):
                made = getattr(ys.fft, name)(ys.asarray(x), n=n, axis=axis, norm=norm)
                close(made, getattr(np.fft, name)(x, n=n, axis=axis, norm=norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name: str, norm: str) -> None:
    for dtype in (SINGLE, DOUBLE):
        x = random((3, 4, 5), dtype[name != "rfftn"])
        for axes, s in [(None, None), ((1,), None), ((2, 0), None), ((-1, 0), (4, 7)), ([0, 1, 2], [2, 3, 4])]:
            made = getattr(ys.fft, name)(ys.asarray(x), s=s, axes=axes, norm=norm)
            close(made, getattr(np.fft, name)(x, s=s, axes=axes, norm=norm))
    close(ys.fft.fftn(ys.asarray(x), s=(-1, 2), axes=(0, 1)), np.fft.fftn(x, s=(3, 2), axes=(0, 1)))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", COMPLEX_IN + REAL_IN)
def test_one_axis_gradient(name: str, norm: str) -> None:
    x = random((2, 5, 2), np.complex128 if name in COMPLEX_IN else np.float64)
    for n in (None, 1, 3, 4, 9, 12):
        check_gradient(lambda t, n=n: getattr(ys.fft, name)(t, n=n, axis=1, norm=norm), x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes_gradient(name: str, norm: str) -> None:
    x = random((3, 4, 2), np.float64 if name == "rfftn" else np.complex128)
    check_gradient(lambda t: getattr(ys.fft, name)(t, norm=norm), x)
    check_gradient(lambda t: getattr(ys.fft, name)(t, s=(5, 2), axes=(2, 0), norm=norm), x)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_second_derivatives(name: str) -> None:
    x = random((6,), np.complex128 if name in COMPLEX_IN else np.float64)
    check_gradient(ys.grad(lambda t: ys.sum(ys.abs(getattr(ys.fft, name)(t)) ** 3)), x, rtol=1e-5)


def test_there_and_back() -> None:
    x = random((4, 6), np.float64)
    for norm in NORMS:
        close(ys.fft.irfftn(ys.fft.rfftn(ys.asarray(x), norm=norm), norm=norm), x)
        close(ys.fft.hfft(ys.fft.ihfft(ys.asarray(x), norm=norm), norm=norm), x)


@pytest.mark.parametrize("half", [ys.float16, ys.bfloat16])
def test_halves_are_transformed_in_single(half: Any) -> None:
    x = ys.asarray(random((6,))).astype(half)
    wide = x.numpy().astype(np.float32)
    close(ys.fft.rfft(x), np.fft.rfft(wide))
    close(ys.fft.fft(x), np.fft.fft(wide))
    close(ys.fft.irfft(x), np.fft.irfft(wide))
    assert ys.grad(lambda t: ys.sum(ys.abs(ys.fft.rfft(t))))(x).dtype == half


def test_integers_and_reals_are_taken() -> None:
    close(ys.fft.fft(ys.arange(4)), np.fft.fft(np.arange(4)))
    close(ys.fft.rfft(ys.arange(4)), np.fft.rfft(np.arange(4)))
    close(ys.fft.irfft(ys.arange(4.0)), np.fft.irfft(np.arange(4.0)))
    check_gradient(lambda t: ys.fft.fft(t, n=7), random((5,)))


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_frequencies(name: str) -> None:
    for n in (1, 2, 5, 8):
        close(getattr(ys.fft, name)(n, d=0.3), getattr(np.fft, name)(n, 0.3))
    made = getattr(ys.fft, name)(4, dtype=ys.float32, device=ys.devices()[-1])
    close(made, getattr(np.fft, name)(4).astype(np.float32))
    with pytest.raises(DTypeError, match=rf"\[{name}\] expected a real floating dtype, got int32"):
        getattr(ys.fft, name)(4, dtype=ys.int32)
    with pytest.raises(ArgumentError, match=rf"\[{name}\] expected at least one sample, got 0"):
        getattr(ys.fft, name)(0)


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts(name: str) -> None:
    x = random((3, 4, 5), np.complex64)
    for axes in (None, 1, (0, 2), [-1], ()):
        close(getattr(ys.fft, name)(ys.asarray(x), axes=axes), getattr(np.fft, name)(x, axes))
    check_gradient(lambda t: getattr(ys.fft, name)(t, axes=(0, 2)), random((3, 4, 5)))
    with pytest.raises(AxisError, match=rf"\[{name}\]"):
        getattr(ys.fft, name)(ys.asarray(x), axes=3)


def test_errors() -> None:
    x = ys.zeros((2, 3))
    with pytest.raises(DTypeError, match=r"\[rfft\] expected a real dtype, got complex128; use fft"):
        ys.fft.rfft(x.astype(ys.complex128))
    with pytest.raises(AxisError, match=r"\[fft\]"):
        ys.fft.fft(x, axis=2)
    with pytest.raises(AxisError, match=r"\[fftn\] expected each axis once"):
        ys.fft.fftn(x, axes=(0, -2))
    with pytest.raises(ArgumentError, match=r"\[fft\] expected norm among 'backward', 'ortho', 'forward', got 'half'"):
        ys.fft.fft(x, norm="half")
    with pytest.raises(ArgumentError, match=r"\[hfft\] expected norm among"):
        ys.fft.hfft(x, norm="half")
    with pytest.raises(ArgumentError, match=r"\[fftn\] expected axes="):
        ys.fft.fftn(x, s=(2, 2))
    with pytest.raises(ArgumentError, match=r"\[fftn\] expected axes="):
        ys.fft.fftn(x, s=(2, 2), axes=(0,))
    with pytest.raises(ShapeError, match=r"\[fft\] expected transforms of at least one element"):
        ys.fft.fft(x, n=0)
    with pytest.raises(ShapeError, match=r"\[irfft\] expected transforms of at least one element"):
        ys.fft.irfft(ys.zeros((2, 1)))
    with pytest.raises(ShapeError, match=r"\[fftn\] expected at least one axis"):
        ys.fft.fftn(ys.zeros(()))


def test_transforms_inside_jit() -> None:
    smooth = ys.jit(ys.grad(lambda t: ys.sum(ys.abs(ys.fft.rfft(t)) ** 2)))
    for seed in (1, 2):
        x = random((5,), seed=seed)
        close(smooth(ys.asarray(x)), 2 * np.fft.irfft(np.fft.rfft(x) * np.array([1, 0.5, 0.5]), 5) * 5)


@pytest.mark.parametrize("name", [n for n in ys.fft.__all__ if not n.endswith("freq")])
def test_numpy_arrays_are_taken_for_tensors(name: str) -> None:
    x = np.arange(12.0).reshape(3, 4)
    f = getattr(ys.fft, name)
    close(f(x), f(ys.asarray(x)).numpy())
    with pytest.raises(DTypeError, match=rf"^\[{name}\] expected a tensor or a number, got str"):
        f("a")


@pytest.mark.parametrize(
    ("name", "text", "attrs"),
    [
        ("fft", "expected a size as an integer, got 1.5", {"n": 1.5}),
        ("irfft", "expected a size as an integer, got 'a'", {"n": "a"}),
        ("rfft", "expected an axis as an integer, got 1.5", {"axis": 1.5}),
        ("fftn", "expected a size as an integer, got 2.5", {"s": (2.5,), "axes": (0,)}),
        ("ifftn", r"expected axes= with one axis for each size of \(3,\), got None", {"s": 3}),
        ("rfftn", "expected an axis as an integer, got 'a'", {"axes": "a"}),
        ("irfftn", "expected an axis from -2 to 1", {"axes": (2,)}),
        ("hfft", r"expected norm among .*, got \['ortho'\]", {"norm": ["ortho"]}),
        ("ihfft", "expected norm among .*, got None", {"norm": None}),
        ("ifftshift", "expected an axis as an integer, got 'a'", {"axes": "a"}),
    ],
)
def test_mistakes_in_attributes(name: str, text: str, attrs: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=rf"^\[{name}\] {text}"):
        getattr(ys.fft, name)(np.ones((3, 4)), **attrs)


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_mistakes_in_frequencies(name: str) -> None:
    frequencies = getattr(ys.fft, name)
    with pytest.raises(DTypeError, match=rf"^\[{name}\] expected n as an integer, got 1.5"):
        frequencies(1.5)
    for d in (0, "a", 1j):
        with pytest.raises(ArgumentError, match=rf"^\[{name}\] expected a real number other than 0 for d, got {d!r}"):
            frequencies(4, d=d)
    assert frequencies(4, d=np.float32(0.5)).tolist() == frequencies(4, d=0.5).tolist()
