"""A traced function that reads a value: the error names what it did, where, and what to write instead."""

import math
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

import yosegi as ys

PACKAGE = Path(ys.__file__).parent
X, N = np.arange(1.0, 5.0), np.asarray(3)

READS = {
    "range": (lambda x, n: list(range(n)), r"got range\(\), a slice", "x.shape"),
    "slice": (lambda x, n: x[:n], r"got range\(\), a slice", "ys.take"),
    "list index": (lambda x, n: [1, 2, 3, 4][n], r"got range\(\), a slice", "x.shape"),
    "mask": (lambda x, n: x[x > 2], "got a boolean mask", "ys.where"),
    "nonzero": (lambda x, n: ys.nonzero(x), r"got nonzero\(\), whose shape", "ys.where"),
    "np.asarray": (lambda x, n: np.asarray(x), r"got np.asarray\(\)", "in place of NumPy's"),
    "numpy": (lambda x, n: x.numpy(), r"got numpy\(\)", "in place of NumPy's"),
    "tolist": (lambda x, n: x.tolist(), r"got tolist\(\)", "in place of NumPy's"),
    "reshape": (lambda x, n: ys.reshape(x, (n, -1)), r"got reshape\(\) with a traced tensor for a length", "x.shape"),
    "zeros": (lambda x, n: ys.zeros((n,)), r"got zeros\(\) with a traced tensor for a length", "x.shape"),
    "sum": (lambda x, n: x.sum(axis=n), r"got sum\(\) with a traced tensor for a length, an axis", "x.shape"),
    "arange": (lambda x, n: ys.arange(n), r"got arange\(\) with a traced tensor whose value", ""),
    "float": (lambda x, n: float(x[0]), r"got float\(\)", "keep it a tensor"),
    "int": (lambda x, n: int(n), r"got int\(\)", "keep it a tensor"),
    "item": (lambda x, n: n.item(), r"got item\(\)", "keep it a tensor"),
    "math": (lambda x, n: math.sin(x[0]), r"got float\(\)", "keep it a tensor"),
    "if": (lambda x, n: x if x[0] > 0 else -x, "got `if`", "ys.where"),
    "and": (lambda x, n: (x[0] > 0) and (n > 0), "got `if`, `while`, `and`", "ys.where"),
    "in": (lambda x, n: 2.0 in x, "got `in`", "ys.any"),
    "format": (lambda x, n: f"{x[0]:.2f}", "got a format", "ys.debug.print"),
}
TRANSFORMS = {
    "jit": lambda f: ys.jit(f)(ys.asarray(X), ys.asarray(N)),
    "vmap": lambda f: ys.vmap(f)(ys.asarray(np.stack([X, X])), ys.asarray(np.stack([N, N]))),
    "eval_shape": lambda f: ys.eval_shape(f, ys.asarray(X), ys.asarray(N)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", READS)
def test_the_cause_is_named(name, transform):
    function, got, fix = READS[name]
    with pytest.raises(ys.errors.TraceError) as caught:
        TRANSFORMS[transform](function)
    text = str(caught.value)
    assert text.startswith(f"[{transform}] expected no values of traced tensors to be read, ")
    caught.match(got)
    assert fix in text.partition(";")[2]
    assert f"{__file__}:" in text, "the user's line"


def test_the_advice_is_that_of_the_transform():
    for transform, advice in {"jit": "static_argnames", "vmap": "axis None", "eval_shape": "Python number"}.items():
        with pytest.raises(ys.errors.TraceError, match=advice):
            TRANSFORMS[transform](READS["float"][0])


def test_a_placeholder_that_was_kept():
    kept = []
    ys.vmap(lambda x: kept.append(x) or x)(ys.asarray(X))
    with pytest.raises(ys.errors.TraceError, match="kept from inside a traced function"):
        kept[0].numpy()


# Tracebacks


def own_frames(call):
    try:
        call()
    except Exception as error:
        return [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(PACKAGE)]
    raise AssertionError("it did not raise")


def wrong(x):
    return ys.sum(ys.reshape(x * 2, (7, 3)))


def kept_from_a_trace():
    kept = []
    ys.jit(lambda x: kept.append(x) or x)(ys.asarray(X))
    return kept[0] + 1


class Unwilling:
    def __dlpack__(self, **kwargs):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return (1, 0)


def users(x):
    raise KeyError("the user's own")


@pytest.mark.parametrize(
    "call",
    [
        lambda: ys.reshape(ys.asarray(X), (7,)),
        lambda: ys.asarray(X) + ys.ones((3,)),
        lambda: ys.roll(ys.asarray(X), "a"),
        lambda: ys.asarray(X)[7],
        lambda: ys.asarray(X).reshape(7),
        lambda: ys.asarray(X).sum(axis=3),
        lambda: np.ones(3) - ys.asarray(X),
        lambda: ys.sum(ys.asarray(X), axis=3, keepdim=True),
        lambda: ys.jit(wrong)(ys.asarray(X)),
        lambda: ys.grad(wrong)(ys.asarray(X)),
        lambda: ys.vmap(wrong)(ys.ones((2, 4))),
        lambda: ys.jvp(wrong, (ys.asarray(X),), (ys.asarray(X),)),
        lambda: ys.eval_shape(wrong, ys.asarray(X)),
        lambda: ys.jit(ys.vmap(ys.hessian(wrong)))(ys.ones((2, 4))),
        lambda: ys.jit(ys.vmap(users))(ys.asarray(X)),
        lambda: ys.jit(READS["if"][0])(ys.asarray(X), ys.asarray(N)),
        lambda: ys.jit(lambda x: x, static_argnames="n"),
        lambda: ys.scan(lambda c, x: c, 0.0, ys.asarray(X)),
        lambda: ys.while_loop(lambda c: c, lambda c: c, ys.asarray(X)),
        lambda: ys.fori_loop(0, 2, lambda i, c: c[:1], ys.asarray(X)),
        lambda: ys.cond(ys.asarray(True), lambda: 1.0, lambda: ys.asarray(X)),
        lambda: ys.options(device="abacus").__enter__(),
        lambda: ys.asarray(X).to_device("abacus"),
        lambda: float(ys.asarray(X)),
        lambda: ys.asarray(X).item(),
        lambda: kept_from_a_trace().numpy(),
        lambda: kept_from_a_trace().tolist(),
        lambda: ys.eval("text"),
        lambda: ys.explain(3),
        lambda: ys.load_plan("no such file"),
        lambda: ys.load("no such file"),
        lambda: ys.tree_map(abs, [1], (1,)),
        lambda: ys.optim.sgd(0.1).update(ys.ones(2), (), ys.ones(3)),
        lambda: ys.from_dlpack(Unwilling()),
    ],
)
def test_no_frame_of_the_package_is_shown(call):
    assert own_frames(call) == []


def test_all_frames_are_shown_if_wanted():
    code = """
import traceback, yosegi as ys
try:
    ys.jit(lambda x: ys.reshape(x, (7,)))(ys.ones((3,)))
except ys.errors.ShapeError as error:
    print(sum("yosegi" in f.filename for f in traceback.extract_tb(error.__traceback__)))
"""
    counts = []
    for setting in ("short", "full"):
        environment = {"PYTHONPATH": ":".join(sys.path), "YOSEGI_TRACEBACK": setting}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        counts.append(int(run.stdout))
    assert counts[0] == 0
    assert counts[1] > 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ys.grad(ys.sum, argnums="x")(ys.ones(2)), "[grad] expected argnums as an int or a sequence of ints"),
        (lambda: ys.jacobian(ys.sum, argnums=None)(ys.ones(2)), "[jacobian] expected argnums as an int"),
        (lambda: ys.custom_vjp(ys.sum, nondiff_argnums=0.5), "[custom_vjp] expected nondiff_argnums as an int"),
        (lambda: ys.jit(ys.sum, static_argnums=None), "[jit] expected static_argnums as an int"),
        (lambda: ys.jit(ys.sum)(memoryview(bytearray(3))), "[jit] expected arguments that are tensors, numbers"),
        (lambda: ys.options(deterministic="no").__enter__(), "[options] expected deterministic=True or"),
        (lambda: ys.options(check_nan=0).__enter__(), "[options] expected check_nan=True or check_nan=False, got 0"),
        (lambda: ys.options(precision="").__enter__(), "[options] expected precision among"),
        (lambda: ys.concat(ys.ones((100, 100)), ys.ones((100, 100))), "[concat] expected an axis as an integer, got"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said_shortly(call, message):
    with pytest.raises(ys.errors.UserError) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 120


NO_FUNCTION = {
    "jit": ys.jit, "grad": ys.grad, "value_and_grad": ys.value_and_grad, "vmap": ys.vmap, "jacobian": ys.jacobian,
    "checkpoint": ys.checkpoint, "custom_vjp": ys.custom_vjp, "vjp": lambda f: ys.vjp(f, 1.0),
    "jvp": lambda f: ys.jvp(f, (1.0,), (1.0,)), "linearize": lambda f: ys.linearize(f, 1.0),
    "eval_shape": lambda f: ys.eval_shape(f, 1.0), "scan": lambda f: ys.scan(f, 1.0, ys.asarray(X)),
    "cond": lambda f: ys.cond(ys.asarray(True), f, f), "while_loop": lambda f: ys.while_loop(f, f, 1.0),
    "fori_loop": lambda f: ys.fori_loop(0, 3, f, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_FUNCTION)
def test_a_value_in_the_place_of_a_function(name):
    with pytest.raises(ys.errors.ArgumentError, match=rf"^\[{name}\] expected a function, got Tensor; pass it without"):
        NO_FUNCTION[name](ys.ones(()))


@pytest.mark.parametrize("sequence", [[1.0, 2.0], (1.0, 2.0)])
def test_a_list_in_the_place_of_a_tensor(sequence):
    """A comparison was silently False."""
    x = ys.ones(2)
    for call in (
        lambda: x == sequence,
        lambda: x - sequence,
        lambda: sequence * x,
        lambda: ys.nn.mse_loss(x, sequence),
    ):
        with pytest.raises(ys.errors.DTypeError, match=r"got (list|tuple); convert it with ys.asarray$"):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda n: ys.nn.Linear(n, 3), lambda n: ys.nn.Linear(3, n), lambda n: ys.nn.Embedding(3, n),
        lambda n: ys.nn.Conv2d(n, 3, 3), lambda n: ys.nn.ConvTranspose1d(3, n, 3),
        lambda n: ys.nn.Conv1d(4, 4, 3, groups=n),
        lambda n: ys.nn.MultiHeadAttention(n, 2), lambda n: ys.nn.MultiHeadAttention(8, n), lambda n: ys.nn.LSTM(3, n),
        lambda n: ys.nn.GRU(3, 3, n),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [2.0, "2", -1, None, np.ones(2)], ids=str)
def test_a_layer_of_no_size(make, size):
    with pytest.raises(ys.errors.ArgumentError, match=r"^\[\w+\] expected \w+ as an integer of at least [01], got "):
        make(size)
    assert make(np.int64(2)) is not None
