"""Edited plan files: each is refused, or gives the same bits, or, with a new digest, is another program that is right.

    python tests/plan_edits.py --edits 20000

Plans of many ops are saved and edited: integers, texts and types are changed, keys and items deleted, doubled and
exchanged, once or several times a file. Every other edit gets a new digest, so that nothing but the checks of the
content stands in its way. The edits run in a child process, in which inputs, constants, intermediates and results lie
between pages that nobody may touch, directly behind the first or directly before the second, and what is left of their
own pages is full of NaN: a read outside ends the child, which is reported, or shows in the result.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from itertools import count
from math import prod
from pathlib import Path
from select import select
from typing import Any, Final

import numpy as np

import yosegi as ys
from yosegi._graph.graph import Graph
from yosegi._graph.portable import as_plain, of_plain
from yosegi._graph.reference import bind
from yosegi._place.planfile import PlanFile, digest_of_plan
from yosegi._run.device import host_device
from yosegi._schedule.fuse import RegionKind
from yosegi._tensor.dtype import ALL, as_dtype
from yosegi._tensor.node import spec
from yosegi._tensor.op import REGISTRY, leaf, pick
from yosegi._tensor.precision import Precision
from yosegi._tune.comparison import disagreement
from yosegi.errors import PlanRefused, UserError

_HANGS: Final = 120  # seconds
_MEMORY: Final = 1 << 26  # bytes that the device says it has: larger values are refused
_ERRORS: Final = {16: 0.05, 32: 5e-4}
"""Of the largest number of a result, by the bits of the shortest floats that a program computes with."""

# Programs


RNG: Final = np.random.default_rng(5)


def _normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def _pooled(x: Any) -> Any:
    return (
        ys.nn.max_pool2d(x, 2, padding=1),
        ys.nn.avg_pool2d(x, 3, stride=2),
        ys.grad(lambda v: ys.sum(ys.nn.max_pool2d(v, 3) ** 2))(x),
    )


def _indexed(x: Any, i: Any) -> Any:
    y = ys.take(x, i, axis=1)
    z = ys.take_along_axis(x, ys.argsort(x, axis=1), axis=1)
    return (
        y * 2 + 1,
        ys.sum(z * z + 1, axis=1),
        x[i[:3] % 4, i[1:4]],
        ys.grad(lambda v: ys.sum(ys.take(v, i, axis=0) ** 2))(x),
    )


def _written(x: Any, i: Any) -> Any:
    x = ys.asarray(x)
    x[1:5:2, ::-1] = x[:2, :] * 2
    x[i % 5] = x[i % 5] + 1
    return x * 2 + 1, ys.sum(ys.square(x) + 1, axis=1)


def _spectra(x: Any) -> Any:
    z = ys.fft.rfft(x, axis=1)
    return z, ys.fft.irfft(z, n=11, axis=1), ys.fft.fftn(z, axes=(0, 1), norm="ortho"), ys.fft.ifft(z, axis=0)


def _created(x: Any) -> Any:
    grid = ys.arange(6, dtype=ys.float32) * ys.linspace(0, 1, 6, dtype=ys.float32)
    constants = ys.asarray(np.float32([[1.5, -2.5, 3.25, 0.5, 7, -1]]))
    return x * grid + constants @ ys.eye(6, k=1, dtype=ys.float32) @ ys.eye(6, dtype=ys.float32), ys.tril(x, k=-1)


def _reduced(x: Any) -> Any:
    return (
        ys.sum(x * 2 + 1, axis=0), ys.max(ys.abs(x), axis=1, keepdims=True), ys.var(x, correction=1), ys.mean(x),
        ys.cumulative_sum(x, axis=1), ys.argmax(x, axis=1), ys.any(x > 2, axis=(0, 1)), ys.prod(x[:, :3], axis=1),
    )  # fmt: skip


def _composite(x: Any, w: Any, b: Any) -> Any:
    h = ys.nn.layer_norm(ys.nn.gelu(ys.nn.linear(x, w, b)), axis=-1)
    return ys.nn.softmax(h, axis=-1), ys.nn.scaled_dot_product_attention(h[None], h[None], h[None], is_causal=True)


def _moved(x: Any) -> Any:
    y = ys.concat([ys.flip(x, axis=1), ys.roll(x, 3, axis=1)], axis=0)
    z = ys.tanh(ys.permute_dims(ys.reshape(y, (2, 5, 7, 1)), (3, 2, 0, 1)) + 1)
    return z, ys.linalg.diagonal(x, offset=1) * 2 - 1, ys.sum(z[0, ..., :3] * 2 + 1, axis=1)


def _viewed(x: Any) -> Any:
    y = ys.tanh(x[1:9:2, ::-1] * 2 + x[5, None, 3:4])
    return y, ys.exp(x[-1, 2:5] * 3) + 1, ys.sum(x[::3][:, 1:4] * x[6:2:-1, 2:5] - 1, axis=0)


def _typed(x: Any, n: Any) -> Any:
    z = ys.astype(x, ys.complex64) * (1 + 2j)
    return ys.real(z * z), (n << 2) ^ (n >> 1), ys.astype(x, ys.float16) + 1, ys.where(x > 0, n, -n), ys.isfinite(x)


PROGRAMS: Final[dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "views": (_viewed, (_normal(10, 7),)),
    "gathers": (_indexed, (_normal(4, 6), np.array([3, 0, 2, 1], np.int64))),
    "writes": (_written, (_normal(6, 7), np.array([4, 0, 2], np.int32))),
    "product": (lambda x, w, b: ys.tanh(x @ w + b) @ w.T, (_normal(33, 40), _normal(40, 17), _normal(17))),
    "stacked": (lambda a, b: ys.einsum("bij,bkj->bik", a, b), (_normal(3, 16, 24), _normal(3, 20, 24))),
    "convolution": (lambda x, w: ys.nn.conv2d(x, w, stride=2, padding=1), (_normal(1, 8, 19, 18), _normal(8, 8, 3, 3))),
    "transposed": (lambda x, w: ys.nn.conv_transpose1d(x, w, stride=2), (_normal(1, 2, 6), _normal(2, 3, 4))),
    "pools": (_pooled, (_normal(1, 2, 7, 6),)),
    "reductions": (_reduced, (_normal(6, 7),)),
    "order": (lambda x: (ys.sort(x, axis=1), ys.argsort(x, axis=0, descending=True)), (_normal(5, 6),)),
    "spectra": (_spectra, (_normal(3, 11),)),
    "composites": (_composite, (_normal(5, 6), _normal(8, 6), _normal(8))),
    "decompositions": (lambda a: (*ys.linalg.svd(a, full_matrices=False), ys.linalg.det(a @ a.T)), (_normal(4, 6),)),
    "solves": (lambda a, b: (ys.linalg.solve(a, b), *ys.linalg.qr(a)), (_normal(4, 4), _normal(4, 2))),
    "constants": (_created, (_normal(6, 6),)),
    "movement": (_moved, (_normal(5, 7),)),
    "dtypes": (_typed, (_normal(3, 5), np.arange(15, dtype=np.int32).reshape(3, 5))),
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "adaptive": {"precision": "adaptive", "tol": 1e-2},
    "float64": {"precision": "adaptive", "tol": 1e-12},
}
LARGE: Final = (lambda x, w: ys.sum(x @ w, axis=0), (_normal(64, 96), _normal(96, 80)))


def prepare(folder: Path) -> None:
    """Save the plans, and the inputs of each."""
    only_native()
    for name, (function, arrays) in PROGRAMS.items():
        _save(folder, name, function, arrays, {})
    for name, options in OPTIONS.items():
        _save(folder, name, *LARGE, options)


def _save(folder: Path, name: str, function: Callable[..., Any], arrays: tuple[Any, ...], options: Any) -> None:
    jitted = ys.jit(function)
    with ys.options(device="cpu", **options):
        for _ in range(2):
            made = jitted(*map(ys.asarray, arrays))
            ys.eval(made)
        jitted.plans[0].save(folder / f"{name}.json")
    np.savez(folder / f"{name}.npz", *arrays)


# Edits


Path_ = tuple[Any, ...]
_HUGE: Final = (2**15, 2**31 - 1, 2**31, 2**32, 2**33, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
_FLOATS: Final = ("nan", "inf", "-inf", "0x1p0", "0x1p99999", "-0x0p0", "1e5", "0x1.8p+1")
_JUNK: Final = (None, True, False, 0, 1, -1, 3, 0.5, float("nan"), "", "x", [], {}, [0], [[0]], {"float": "nan"},
                {"dtype": "int8"}, {"array": "", "dtype": "bool", "shape": [0]}, 2**63, -(2**63) - 1)  # fmt: skip
_WORDS: Final = (
    *sorted(REGISTRY), *[d.name for d in ALL], *[p.value for p in Precision], *[k.value for k in RegionKind],
    "cpu", "host", "f4", "<f8", "float", "ab,bc->ac", "getitem", "\0", "é" * 70,
)  # fmt: skip


def edited(data: Any, chance: random.Random) -> tuple[bytes, str]:
    """The text of a file after one edit or several, and the edits in words."""
    data = deepcopy(data)
    notes = [edit_once(data, chance) for _ in range(1 if chance.random() < 0.6 else chance.randint(2, 5))]
    if chance.random() < 0.5:
        if chance.random() < 0.5:
            _repair(data)
            notes.append("repaired")
        data["digest"] = digest_of_plan(data)
        notes.append("a new digest")
    text = json.dumps(data)
    if chance.random() < 0.05:
        text, note = _scratched(text, chance)
        notes.append(note)
    return text.encode(), "; ".join(notes)


def _repair(data: Any) -> None:
    """Let every call of the graph have the outputs that its op gives for the arguments and attributes it now has."""
    made: list[Any] = []
    try:
        for item in data["graph"]["calls"]:
            op, attrs = REGISTRY[item["op"]], {k: of_plain(v, "") for k, v in item["attrs"].items()}
            given = [s for a in item["args"] for s in made[a]]
            if op is leaf or op.name == "embedded" or op is pick:
                made.append(
                    [given[attrs["index"]]]
                    if op is pick
                    else [spec(tuple(s), as_dtype(d), w) for s, d, w in item["outputs"]]
                )
            else:
                call = op.call(tuple(given), attrs)
                made.append(call.outputs)
                item["attrs"] = {k: as_plain(v) for k, v in call.attrs.items()}
            item["outputs"] = [[list(s.shape), s.dtype.name, s.weak] for s in made[-1]]
    except Exception:  # it is no program any more: it stays as it is
        return


def edit_once(data: Any, chance: random.Random) -> str:
    """One edit of any JSON data, in place; of a plan, of its graph and steps most often."""
    paths = [p for p in _paths(data) if p and p[0] != "sources"]
    deep = [p for p in paths if p[0] in ("graph", "steps")]
    attrs = [p for p in deep if "attrs" in p]
    path = chance.choice(
        attrs if attrs and chance.random() < 0.5 else deep if deep and chance.random() < 0.95 else paths
    )
    parent, key = _at(data, path[:-1]), path[-1]
    value = parent[key]
    kinds: list[Callable[[], Any]] = [
        lambda: deepcopy(chance.choice(_JUNK)),
        lambda: deepcopy(_at(data, chance.choice(deep or paths))),
    ]
    if type(value) is bool:
        kinds += [lambda: not value] * 4
    elif type(value) is int:
        if chance.random() < 0.1:
            return _resized(data, value, chance.choice([value + 1, value - 1, value * 2, 1, 0, chance.choice(_HUGE)]))
        near = [value + 1, value - 1, -value, value * 2, value // 2, 0, chance.choice(_HUGE), -chance.choice(_HUGE)]
        kinds += [lambda: chance.choice(near), lambda: chance.randint(0, 12)] * 4
    elif type(value) is str:
        kinds += [lambda: chance.choice(_WORDS), lambda: chance.choice(_FLOATS), lambda: _letters(value, chance)] * 3
        peers = _peers(value)
        kinds += [lambda: chance.choice(peers)] * (6 if peers else 0)
    elif type(value) is list:
        kinds += [lambda: _relisted(value, chance)] * 6
    elif type(value) is dict:
        kinds += [lambda: _remapped(value, chance)] * 4
    if type(parent) is list and chance.random() < 0.1:
        other = chance.randrange(len(parent))
        parent[key], parent[other] = parent[other], parent[key]
        return f"{_shown(path)} exchanged with [{other}]"
    parent[key] = chance.choice(kinds)()
    return f"{_shown(path)}: {value!r:.60} → {parent[key]!r:.60}"


def _paths(data: Any, here: Path_ = ()) -> Iterator[Path_]:
    yield here
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _paths(value, (*here, key))
    elif isinstance(data, list):
        for n, value in enumerate(data):
            yield from _paths(value, (*here, n))


def _at(data: Any, path: Path_) -> Any:
    for key in path:
        data = data[key]
    return data


def _shown(path: Path_) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).strip(".")


def _resized(data: Any, value: int, other: int) -> str:
    """Every integer of the graph that equals one becomes another: shapes stay consistent, now and then."""
    for path in list(_paths(data)):
        if path and path[0] == "graph" and "args" not in path and path[1:2] != ("outputs",):
            here = _at(data, path)
            if type(here) is int and here == value:
                _at(data, path[:-1])[path[-1]] = other
    return f"every {value} → {other}"


def _letters(value: str, chance: random.Random) -> str:
    if not value:
        return "a"
    n = chance.randrange(len(value))
    return chance.choice([value[:n], value[:n] + chance.choice("aA0=+/\u0131") + value[n + 1 :], value + value[:4]])


def _peers(value: str) -> list[str]:
    """Ops that take as many tensors, other dtypes, other precisions."""
    if value in REGISTRY:
        own = REGISTRY[value]
        return [
            n for n, op in REGISTRY.items() if op.__signature__.parameters.keys() == own.__signature__.parameters.keys()
        ]
    return [d.name for d in ALL] if value in [d.name for d in ALL] else []


def _relisted(value: list[Any], chance: random.Random) -> list[Any]:
    if not value:
        return [deepcopy(chance.choice(_JUNK))]
    n = chance.randrange(len(value))
    return chance.choice([
        value[:n] + value[n + 1 :], [*value[:n], deepcopy(value[n]), *value[n:]], value[::-1], [], [value],
        [*value, deepcopy(chance.choice(_JUNK))], [*value, len(value)],
    ])  # fmt: skip


def _remapped(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    made = dict(value)
    key = chance.choice(list(made)) if made else "x"
    kind = chance.randrange(3)
    if kind == 0:
        made.pop(key, None)
    elif kind == 1:
        made[chance.choice(["x", "axis", "given", "space", "key"])] = deepcopy(chance.choice([*made.values(), 0]))
    else:
        made[f"{key}_"] = made.pop(key, 0)
    return made


def _scratched(text: str, chance: random.Random) -> tuple[str, str]:
    """The text with a character changed, cut off, or with a key that stands twice."""
    n = chance.randrange(len(text))
    kind = chance.randrange(3)
    if kind == 0:
        return text[:n], f"cut off at {n}"
    if kind == 1:
        return text.replace('"args"', '"args": [], "args"', 1), "args twice"
    return text[:n] + chance.choice('0[]{},"') + text[n + 1 :], f"another character at {n}"


# Memory between guards


_libc: Final = ctypes.CDLL(None, use_errno=True)
_ends: Final = count()
_empty: Final = np.empty
_frombuffer: Final = np.frombuffer


def guarded(shape: Any, dtype: Any) -> Any:
    """An array between two pages that nobody may touch: now directly before the second, now directly behind the first.
    The rest of its own pages is full of NaN."""
    page = mmap.PAGESIZE
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (int(shape),)
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    inside = max(1, -(-nbytes // page)) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    memory[page : page + inside] = b"\xff" * inside
    made = np.ndarray(shape, dtype, memory, page + (inside - nbytes if next(_ends) % 2 else 0))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for edge in (start, start + page + inside):
        if _libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return made


def copied(array: Any) -> Any:
    """A guarded copy."""
    made = guarded(array.shape, array.dtype)
    made[...] = array
    return made


def install() -> None:
    """Guard what kernels allocate and what files hold, and let the device have little memory."""

    def empty(shape: Any, dtype: Any = float, order: str = "C", **more: Any) -> Any:
        if order != "C" or more or np.dtype(dtype).hasobject:
            return _empty(shape, dtype, order, **more)
        return guarded(shape, dtype)

    def frombuffer(buffer: Any, dtype: Any = float, *rest: Any, **more: Any) -> Any:
        made = _frombuffer(buffer, dtype, *rest, **more)
        if not isinstance(buffer, bytes):
            return made
        made = copied(made)
        made.flags.writeable = False
        return made

    np.empty, np.frombuffer = empty, frombuffer  # type: ignore[assignment]
    only_native()
    type(host_device()).memory = lambda self: (_MEMORY, _MEMORY)  # type: ignore[method-assign]


def only_native() -> None:
    """Let native code compute whatever it can, however small: that it would not pay is not the question here."""
    natives, stages = (import_module(f"yosegi.devices.cpu.{name}") for name in ("native_groups", "tiered"))
    setattr(natives, "_POLICY", replace(natives._POLICY, numpy_elements=0))  # noqa: B010
    setattr(stages, "_POLICY", replace(stages._POLICY, small_product=0))  # noqa: B010


# In the child


class Subject:
    """A saved plan, its inputs, and what it gives."""

    def __init__(self, folder: Path, name: str) -> None:
        self.data = json.loads((folder / f"{name}.json").read_bytes())
        stored = np.load(folder / f"{name}.npz")
        self.arrays = [stored[n] for n in stored.files]
        loaded = ys.load_plan(folder / f"{name}.json")
        self.specs = loaded.inputs
        self.expected = _bits(run(loaded, self.inputs()))

    def inputs(self) -> list[Any]:
        return [ys.asarray(copied(a), copy=False) for a in self.arrays]


def run(loaded: Any, inputs: list[Any]) -> Any:
    """The results of the second run: the first may be NumPy's, while native code is not compiled yet."""
    loaded(*inputs)
    return loaded(*inputs)


def _bits(made: Any) -> list[bytes]:
    return [f"{m.shape} {m.dtype}".encode() + np.ascontiguousarray(m.numpy()).tobytes() for m in made]


def judged(subject: Subject, path: Path) -> tuple[str, str]:
    """What came of an edited file, and a note."""
    is_sealed = True
    try:
        data = json.loads(path.read_bytes())
        is_sealed = isinstance(data, dict) and data.get("digest") != subject.data["digest"]
    except (ValueError, RecursionError):
        is_sealed = False
    try:
        loaded = ys.load_plan(path)
    except PlanRefused as refused:
        return "refused", str(refused)
    is_same = [(s.shape, s.dtype) for s in loaded.inputs] == [(s.shape, s.dtype) for s in subject.specs]
    given = subject.inputs() if is_same else [ys.asarray(copied(_drawn(s)), copy=False) for s in loaded.inputs]
    try:
        made = run(loaded, given)
    except UserError as mistake:
        failure: UserError | None = mistake
    else:
        failure = None
        if is_same and _bits(made) == subject.expected:
            return "same bits", ""
    if not is_sealed:
        return "FAILED", "other bits under the old digest"
    file = PlanFile.read(path)
    try:
        wanted = _reference(file.graph, [np.array(t.numpy()) for t in given])
    except UserError as mistake:
        return ("refused", f"as it ran: {failure}") if failure is not None else ("FAILED", f"expected {mistake!r}")
    if failure is not None:
        return "FAILED", f"{failure!r}, where the reference has a result"
    wrong = _difference(file, wanted, [m.numpy() for m in made])
    return ("another program", "") if wrong is None else ("FAILED", wrong)


def _difference(file: PlanFile, wanted: list[Any], made: list[Any]) -> str | None:
    """Why results are not those of the reference: they may be off by the roundings of the program's shortest floats."""
    is_full = all(step.precision in ("full", "f64") for step in file.steps)
    bits = {16 if s.dtype.is_half else s.dtype.bits for c in file.graph.calls for s in c.outputs if s.dtype.is_float}
    error = _ERRORS[min(bits | {32} if is_full else {16})]
    for mine, own in zip(made, wanted, strict=True):
        if is_full or own.dtype.kind not in "biu":  # integers that are made of rounded products may be others
            eps = float(np.finfo(own.dtype).eps) if own.dtype.kind in "fc" else 2.0**-7
            wrong = disagreement([own], [mine], error / eps)
            if wrong is not None:
                return wrong
    return None


def _drawn(s: Any) -> Any:
    chance = np.random.default_rng(s.size)
    if s.dtype.is_inexact:
        return chance.standard_normal(s.shape).astype(s.dtype.numpy)
    return chance.integers(0, 2, s.shape).astype(s.dtype.numpy)


def _reference(graph: Graph, arrays: list[Any]) -> list[Any]:
    """The outputs of a graph by its ops' reference bodies."""
    values: list[Any] = []
    given = iter(arrays)
    with np.errstate(all="ignore"):
        for call, args in zip(graph.calls, graph.args, strict=True):
            if call.op is leaf:
                values.append(next(given))
            elif call.op is pick:
                values.append(values[args[0]][call.attrs["index"]])
            else:
                made = bind(call)(*[values[a] for a in args])
                values.append(made if len(call.outputs) > 1 else np.asarray(made, call.spec.dtype.numpy))
    return [values[o] for o in graph.outputs]


def work(folder: Path, seed: int, first: int, end: int) -> None:
    """Judge some edits, and report each on standard output before and after."""
    warnings.simplefilter("ignore")
    install()
    names = sorted(p.stem for p in folder.glob("*.npz"))
    with ys.options(device="cpu"):
        subjects = {name: Subject(folder, name) for name in names}
        for number in range(first, end):
            print(json.dumps([number]), flush=True)
            name = names[number % len(names)]
            text, note = edited(subjects[name].data, random.Random(f"{seed} {number}"))
            path = folder / "edited.json"
            path.write_bytes(text)
            try:
                outcome, why = judged(subjects[name], path)
            except BaseException as error:
                outcome, why = "FAILED", f"{type(error).__name__}: {error}"
            print(json.dumps([number, outcome, f"{name}: {note}", why]), flush=True)


# In the parent


def fuzz(edits: int, seed: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """What came of so many edits, and the failures in words."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="plan-edits-") as folder:
        environment = {
            **os.environ,
            "YOSEGI_CACHE_DIR": f"{folder}/cache",
            "YOSEGI_CALIBRATE": "0",
            "YOSEGI_BACKGROUND": "0",
        }
        command = [sys.executable, "-W", "ignore", __file__, "--folder", folder, "--seed", str(seed)]
        subprocess.run([*command, "--prepare"], env=environment, check=True)
        here, end = first, first + edits
        while here < end:
            last, outcome = _child(
                [*command, "--first", str(here), "--edits", str(end - here)], environment, outcomes, failures
            )
            if outcome is not None:
                outcomes["FAILED"] += 1
                name = sorted([*PROGRAMS, *OPTIONS])[last % len(PROGRAMS | OPTIONS)]
                data = json.loads((Path(folder) / f"{name}.json").read_bytes())
                failures.append(f"edit {last}, {name}: {edited(data, random.Random(f'{seed} {last}'))[1]}: {outcome}")
            here = last + 1
    return outcomes, failures


def _child(
    command: list[str], environment: dict[str, str], outcomes: Counter[str], failures: list[str]
) -> tuple[int, str | None]:
    """Run a child to its end: the last edit that it began, and how that ended it."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    last, is_done = int(command[command.index("--first") + 1]) - 1, True
    buffer = b""
    while True:
        if not select([process.stdout], [], [], _HANGS)[0]:
            process.kill()
            process.wait()
            return last, f"no result within {_HANGS} s"
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            last, *rest = json.loads(line)
            is_done = bool(rest)
            if rest:
                outcomes[rest[0]] += 1
                if rest[0] == "FAILED":
                    failures.append(f"edit {last}, {rest[1]}: {rest[2]}")
    words = process.stderr.read().decode(errors="replace").strip().splitlines()
    status = process.wait()
    if status == 0:
        return last, None
    if is_done and last < int(command[command.index("--first") + 1]):
        raise SystemExit("\n".join(["the child did not start", *words]))
    return last, f"the child ended with {status} {words[-1:] or ''}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first edit")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.folder)
        return 0
    if options.folder:
        work(options.folder, options.seed, options.first, options.first + options.edits)
        return 0
    outcomes, failures = fuzz(options.edits, options.seed, options.first)
    print("\n".join(failures[:50]))
    print(
        f"{options.edits} edits of {len(PROGRAMS | OPTIONS)} plans: "
        + ", ".join(f"{n} {o}" for o, n in outcomes.most_common())
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
