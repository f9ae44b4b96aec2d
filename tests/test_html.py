"""What notebooks show: tensors, plans, jitted functions and devices."""

import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest

import yosegi as ys
from yosegi._place.explain import Explanation, shortened
from yosegi._run.device import Devices, present
from yosegi._tensor.html import folded, heading, picture, preformatted, table

VOID = {"img", "br"}


class Tags(HTMLParser):
    """Fails on tags that are not closed in order, and collects the text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def pixels(html):
    """The RGBA pixels of a picture."""
    png = b64decode(re.search('base64,([^"]+)', html)[1])
    start = png.index(b"IDAT") + 4
    rows = zlib.decompress(png[start : start + int.from_bytes(png[start - 8 : start - 4], "big")])
    width, height = (int.from_bytes(png[n : n + 4], "big") for n in (16, 20))
    return np.frombuffer(rows, np.uint8).reshape(height, 1 + 4 * width)[:, 1:].reshape(height, width, 4)


def test_a_tensor_is_not_computed_to_be_shown():
    y = ys.asarray([1.0, 2.0]) + 1
    assert Tags(y._repr_html_()).text == "Tensor shape (2,), float64, not computed yet"
    bundle = y._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/plain"] == "Tensor(<float64[2], not computed yet>)"
    assert y._node.buffer is None
    ys.eval(y)
    assert Tags(y._repr_html_()).text == "Tensor shape (2,), float64, on cpu[2., 3.]"
    assert y._repr_mimebundle_()["text/plain"] == repr(y)


@pytest.mark.parametrize("dtype", [ys.float32, ys.bfloat16, ys.int64, ys.bool, ys.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (100,), (3, 70), (2, 3, 9, 9), (200, 100)])
def test_every_tensor_has_a_page(shape, dtype):
    x = ys.ones(shape, dtype=dtype)
    ys.eval(x)
    html = x._repr_html_()
    assert f"shape {shape}, {dtype.name}, on cpu" in Tags(html).text
    assert ("<img" in html) == (x.size > 64)


def test_a_picture_shows_sign_size_and_what_is_not_finite():
    (made,) = pixels(picture(np.array([2.0, -1.0, 0.0, np.nan, -np.inf])))
    assert [tuple(p) for p in made] == [
        (31, 119, 180, 255), (230, 97, 0, 127), (0, 0, 0, 0), (128, 128, 128, 255), (128, 128, 128, 255),
    ]  # fmt: skip
    assert pixels(picture(np.ones((1000, 30)))).shape == (48, 30, 4)


def test_text_is_escaped():
    evil = "<script>alert('x')</script>"
    for html in (heading(evil, evil), table([evil], [[evil]]), preformatted(evil), folded(evil, "")):
        assert "<script" not in html
        assert evil in Tags(html).text

    @ys.jit
    def f(x):
        return x * 2

    f.__name__ = evil
    assert "<script" not in f._repr_html_()


def test_plans_and_jitted_functions():
    @ys.jit
    def double(x):
        return x * 2

    assert repr(double) == "<jit of double: 0 traces>"
    assert Tags(double._repr_html_()).text == "jit double: 0 traces"
    with ys.options(device="cpu"):
        double(ys.asarray([1.0]))
        double(ys.asarray(1))
        assert repr(double) == "<jit of double: 2 traces>"
        assert repr(double.plans[0]) == "<plan of 1 step on cpu>"
        assert repr(double.plans[0].steps) == "(<step on cpu: multiply>,)"
        text = Tags(double._repr_html_()).text
    assert "Plan 1 step on cpu: float64[1] → float64[1]" in text
    assert "int64[] → int64[]" in text


def test_devices():
    found = Devices(present())  # `ys.devices` waits for every driver
    assert repr(found[-1]) == str(found[-1]) == "cpu"
    assert repr(found) == f"({', '.join(d.name for d in found)}{',' * (len(found) == 1)})"
    text = Tags(found._repr_html_()).text
    assert all(device.description in text for device in found)


def test_short_texts():
    x = ys.zeros((2, 3))
    assert repr(x.at) == "<at of float64[2, 3]>"
    assert repr(x.at[0]) == "<places 0 of float64[2, 3]>"


def test_many_shapes_are_counted():
    assert shortened(["float32[2]"] * 3) == "float32[2], float32[2], float32[2]"
    many = [*["float32[2]"] * 200, *["float32[3]"] * 100, *[f"int64[{n}]" for n in range(7)]]
    assert shortened(many).startswith("307 values (200 × float32[2], 100 × float32[3], int64[0], ")
    assert shortened(many).endswith(", …)")


def test_many_kernels_are_counted():
    x = ys.asarray(np.ones((64, 64), np.float32))
    for _ in range(10):
        x = ys.nn.softmax(x @ x)
    with ys.options(device="cpu"):
        explanation = ys.explain(x)
    assert isinstance(explanation, Explanation)
    assert "10 × matmul" in str(explanation)
    assert "10 × matmul" in Tags(explanation._repr_html_()).text
