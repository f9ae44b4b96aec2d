"""Time to the first result in a fresh process: Yosegi beside JAX, and what importing Yosegi costs.

    make first-call, or: PYTHONPATH=src python tests/first_call.py [--repetitions 3] [--filter tiny,cnn] [--json FILE]

Every measurement is a process of its own. The clock starts after the imports, before the first array is made, and stops
when the result is on the host. Variants of Yosegi: an empty cache and a warm one, on the machine's whole chain ("auto")
and on the CPU alone. `HOME` and `YOSEGI_CACHE_DIR` are fresh folders. A warm cache was filled by one process that ran
the case a few times and lived until its background work was done. JAX has its defaults, without a persistent cache.
All variants take turns, and their results are compared with JAX's before a time counts.

The limits: an empty cache takes no longer than JAX, a warm one half of that; importing NumPy and Yosegi takes no longer
than 1.5 times NumPy plus 0.1 s; on the CPU alone no child process is started. The exit status is 1 if one is not met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from signal import Signals
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Final

JAX: Final = "JAX"
DEVICES: Final = ("auto", "cpu")
WARM: Final = 0.5
"""The share of JAX's time that a warm cache may take."""
TOLERANCE: Final = 1e-4
"""How far a result may be from JAX's, over the largest value."""
IMPORT_FACTOR: Final = 1.5
IMPORT_EXTRA: Final = 0.1
_TIMEOUT: Final = 600.0
_RATE: Final = 0.01
_CALLS: Final = 5
"""How often a warming process runs its case."""
_COMPARED: Final = 4096
"""Elements of a result that are compared, at even distances."""
_MARK: Final = "first-call-result:"
_IMPORTS: Final = {"numpy": "import numpy", "numpy, yosegi": "import numpy; import yosegi"}

Arrays = dict[str, Any]
Case = Callable[[Arrays], tuple[list[Any], Callable[[], list[Any]]]]
"""Makes the first result from NumPy arrays: arrays on the host, and a function that goes on to the next result."""


# The cases, with NumPy arrays from before the clock


def inputs(case: str) -> Arrays:
    """The NumPy arrays of a case, the same in every process."""
    import numpy as np

    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    if case == "tiny":
        return {"x": normal(4), "y": normal(4)}
    if case == "product":
        return {"x": normal(512, 512), "y": normal(512, 512)}
    return {
        "images": normal(32, 1, 28, 28),
        "labels": rng.integers(0, 10, 32).astype(np.int32),
        "kernel1": normal(8, 1, 3, 3, scale=0.3),
        "bias1": np.zeros(8, np.float32),
        "kernel2": normal(16, 8, 3, 3, scale=0.1),
        "bias2": np.zeros(16, np.float32),
        "weight": normal(10, 16 * 7 * 7, scale=0.03),
        "bias3": np.zeros(10, np.float32),
    }


def yosegi_cases() -> dict[str, Case]:
    """The cases in Yosegi. Imports it."""
    import numpy as np

    import yosegi as ys

    def binary(op: Callable[[Any, Any], Any]) -> Case:
        def run(arrays: Arrays) -> tuple[list[Any], Callable[[], list[Any]]]:
            def once() -> list[Any]:
                return [np.asarray(op(ys.asarray(arrays["x"]), ys.asarray(arrays["y"])))]

            return once(), once

        return run

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = ys.nn.relu(ys.nn.conv2d(images, params["kernel1"], params["bias1"], padding="same"))
        x = ys.nn.max_pool2d(x, 2)
        x = ys.nn.relu(ys.nn.conv2d(x, params["kernel2"], params["bias2"], padding="same"))
        x = ys.reshape(ys.nn.max_pool2d(x, 2), (images.shape[0], -1))
        return ys.nn.cross_entropy(ys.nn.linear(x, params["weight"], params["bias3"]), labels)

    @ys.jit
    def step(params: Any, images: Any, labels: Any) -> Any:
        value, slopes = ys.value_and_grad(loss)(params, images, labels)
        return ys.tree_map(lambda p, g: p - _RATE * g, params, slopes), value

    return {"tiny": binary(ys.add), "product": binary(ys.matmul), "cnn": _training(step, ys.asarray)}


def jax_cases() -> dict[str, Case]:
    """The cases in JAX. Imports it."""
    import jax
    import jax.nn
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    def binary(op: Callable[[Any, Any], Any]) -> Case:
        def run(arrays: Arrays) -> tuple[list[Any], Callable[[], list[Any]]]:
            def once() -> list[Any]:
                return [np.asarray(op(jnp.asarray(arrays["x"]), jnp.asarray(arrays["y"])))]

            return once(), once

        return run

    def conv(x: Any, kernel: Any, bias: Any) -> Any:
        made = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return made + bias[:, None, None]

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x = pool(jax.nn.relu(conv(images, params["kernel1"], params["bias1"])))
        x = pool(jax.nn.relu(conv(x, params["kernel2"], params["bias2"])))
        logits = x.reshape(images.shape[0], -1) @ params["weight"].T + params["bias3"]
        logs = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))

    @jax.jit
    def step(params: Any, images: Any, labels: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(params, images, labels)
        return jax.tree.map(lambda p, g: p - _RATE * g, params, slopes), value

    return {"tiny": binary(jnp.add), "product": binary(jnp.matmul), "cnn": _training(step, jnp.asarray)}


def _training(step: Callable[..., Any], adopt: Callable[[Any], Any]) -> Case:
    """A case of training steps: each result is the loss; the parameters come to the host too."""

    def run(arrays: Arrays) -> tuple[list[Any], Callable[[], list[Any]]]:
        import numpy as np

        own = {name: adopt(array) for name, array in arrays.items()}
        images, labels = own.pop("images"), own.pop("labels")
        state = {"params": own}

        def once() -> list[Any]:
            state["params"], value = step(state["params"], images, labels)
            result = [float(value)]
            for param in state["params"].values():
                np.asarray(param)
            return result

        return once(), once

    return run


CASES: Final = ("tiny", "product", "cnn")
TITLES: Final = {
    "tiny": "add, 4 elements",
    "product": "product, 512 × 512",
    "cnn": "CNN training step, jit",
}


# In the measured process


class Children:
    """The child processes that this process starts, by an audit hook."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self._last = ""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
            if (self._last, event) != ("subprocess.Popen", "os.posix_spawn"):  # Popen itself may call posix_spawn
                command = arguments[1] if len(arguments) > 1 else ()
                words = [command] if isinstance(command, (str, bytes)) else list(command)
                self.commands.append(" ".join([event, *map(str, words)])[:200])
            self._last = event


def measure_here(library: str, case: str, linger: float) -> dict[str, Any]:
    """Run a case in this process, once; with `linger`, a few times, then wait for so many seconds."""
    arrays = inputs(case)
    cases = jax_cases() if library == JAX else yosegi_cases()
    children = Children()
    start = perf_counter()
    first, again = cases[case](arrays)
    seconds = perf_counter() - start
    in_time = len(children.commands)
    second = again()  # in a training step, it depends on the gradients of the first
    if linger:
        for _ in range(_CALLS):
            again()
        sleep(linger)
    return {
        "seconds": seconds,
        "values": [[float(v) for v in _flat(part)] for part in (first, second)],
        "children": children.commands,
        "children_before_result": in_time,
    }


def _flat(part: list[Any]) -> Iterable[float]:
    import numpy as np

    values = np.concatenate([np.ravel(a) for a in part])
    return values[:: -(-values.size // _COMPARED)].tolist()  # type: ignore[no-any-return]


# The variants, in turns


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of the table: a case in one library, on a device, with an empty or a warm cache."""

    case: str
    library: str
    device: str = ""
    is_warm: bool = False

    @property
    def label(self) -> str:
        """The name of the row, without the case."""
        return f"Yosegi, {self.device}, {'warm' if self.is_warm else 'empty'} cache" if self.device else self.library

    @property
    def share(self) -> float:
        """The share of JAX's time that it may take."""
        return WARM if self.is_warm else 1.0


def variants(case: str) -> list[Variant]:
    """JAX first, then every variant of Yosegi."""
    ours = [Variant(case, "Yosegi", device, warm) for warm in (False, True) for device in DEVICES]
    return [Variant(case, JAX), *ours]


def in_a_child(variant: Variant, folder: str, linger: float = 0.0) -> dict[str, Any]:
    """Measure a variant in a fresh process whose home and cache lie in a folder; or the reason why it failed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("YOSEGI_", "JAX_", "XDG_"))}
    environment |= {"HOME": folder, "YOSEGI_CACHE_DIR": str(Path(folder) / "cache")}
    if variant.device:
        environment["YOSEGI_DEVICE"] = variant.device
    command = [sys.executable, "-W", "ignore", __file__, "--child", variant.library, variant.case, str(linger)]
    try:
        return dict(json.loads(_last_words(command, environment)))
    except ChildProcessError as failure:
        return {"failure": str(failure)}


def _last_words(command: list[str], environment: dict[str, str] | None = None) -> str:
    """The marked line of a process that must succeed."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ChildProcessError(f"it did not end within {_TIMEOUT:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not lines:
        errors = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        ending = Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
        raise ChildProcessError(f"it ended with {ending}: {errors[-1]}")
    return lines[-1].removeprefix(_MARK)


def import_times(repetitions: int) -> dict[str, list[float]]:
    """Seconds of importing NumPy, and NumPy with Yosegi, in fresh processes, in turns. The first is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    for turn in range(repetitions + 1):
        for name, statement in _IMPORTS.items():
            code = f"import time; t = time.perf_counter(); {statement}; print('{_MARK}', time.perf_counter() - t)"
            seconds = float(_last_words([sys.executable, "-c", code]))
            if turn:
                taken[name].append(seconds)
    return taken


def is_right(values: list[list[float]], expected: list[list[float]]) -> bool:
    """True if each result is within the tolerance of JAX's."""
    for got, wanted in zip(values, expected, strict=True):
        largest = max(1.0, *map(abs, wanted))
        if len(got) != len(wanted) or any(
            not abs(a - b) <= TOLERANCE * largest for a, b in zip(got, wanted, strict=True)
        ):
            return False
    return True


def measure(cases: list[str], repetitions: int, linger: float) -> dict[Variant, list[dict[str, Any]]]:
    """All variants of the cases, in turns; the runs of each. Warm caches are made before, and not in the runs."""
    rows = [v for case in cases for v in variants(case)]
    runs: dict[Variant, list[dict[str, Any]]] = {v: [] for v in rows}
    with TemporaryDirectory() as root:
        in_a_child(Variant(cases[-1], JAX), root)  # not counted: the operating system reads its files
        folders = {}
        for v in rows:
            if v.is_warm:
                folders[v] = str(Path(root) / f"{v.case}-{v.device}")
                Path(folders[v]).mkdir()
                _say(f"warming: {v.case}, {v.device}")
                warmed = in_a_child(v, folders[v], linger)
                runs[v].append({**warmed, "is_warming": True})
        for turn in range(repetitions):
            for v in rows:
                _say(f"turn {turn + 1} of {repetitions}: {v.case}, {v.label}")
                with TemporaryDirectory() as fresh:
                    runs[v].append(in_a_child(v, folders.get(v, fresh)))
    return runs


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The table


@dataclass(frozen=True, slots=True)
class Row:
    """A measured figure with its limit. `low` and `high` are the fastest and the slowest run."""

    case: str
    variant: str
    unit: str
    median: float
    low: float
    high: float
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """ "met", "not met", or nothing where there is no limit."""
        if self.limit is None:
            return ""
        return "met" if self.median <= self.limit and not self.note.startswith("wrong") else "NOT MET"


def rows_of(runs: dict[Variant, list[dict[str, Any]]], imports: dict[str, list[float]]) -> list[Row]:
    """The table: times against JAX's, imports against NumPy's, and the children that were started."""
    made = []
    for v, all_runs in runs.items():
        peer = _measured(runs[Variant(v.case, JAX)])
        limit = v.share * median(r["seconds"] for r in peer) if v.device else None
        failure = next((r["failure"] for r in all_runs if "failure" in r), "")
        if not failure and not all(is_right(r["values"], peer[0]["values"]) for r in all_runs):
            failure = "a result is wrong"
        if failure:
            made.append(Row(TITLES[v.case], v.label, "s", inf, inf, inf, limit, failure))
            continue
        times = [r["seconds"] for r in _measured(all_runs)]
        children = max(r["children_before_result"] for r in _measured(all_runs))
        note = f"{children} children" if children else ""
        made.append(Row(TITLES[v.case], v.label, "s", median(times), min(times), max(times), limit, note))
    alone = [len(r.get("children", ())) for v, all_runs in runs.items() if v.device == "cpu" for r in all_runs]
    made.append(Row("child processes", "Yosegi, cpu", "", max(alone), min(alone), max(alone), 0))
    base = median(imports["numpy"])
    for name, times in imports.items():
        limit = None if name == "numpy" else IMPORT_FACTOR * base + IMPORT_EXTRA
        made.append(Row("import", name, "s", median(times), min(times), max(times), limit))
    return made


def _measured(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that count: not those that filled a cache."""
    return [r for r in runs if not r.get("is_warming")]


def show(rows: list[Row]) -> None:
    """Print the table."""
    print(f"{'':24}{'':28}{'median':>9}{'fastest – slowest':>20}{'limit':>9}  ")
    for row in rows:
        digits = 3 if row.unit else 0
        spread = f"{row.low:.{digits}f} – {row.high:.{digits}f}"
        limit = "" if row.limit is None else f"{row.limit:.{digits}f}"
        words = "  ".join(filter(None, (row.verdict, row.note)))
        print(f"{row.case:24}{row.variant:28}{row.median:9.{digits}f}{spread:>20}{limit:>9}  {words}".rstrip())
    missed = sum(row.verdict == "NOT MET" for row in rows)
    print(f"seconds; {missed} of {sum(row.limit is not None for row in rows)} limits not met")


def main() -> int:
    """Measure, print a table, write JSON if asked to. 1 if a limit is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--imports", type=int, default=7, help="repetitions of the imports")
    parser.add_argument("--linger", type=float, default=20.0, help="seconds that a warming process waits at its end")
    parser.add_argument("--filter", default=",".join(CASES), help=f"cases among {', '.join(CASES)}, with commas")
    parser.add_argument("--json", metavar="FILE", help="write every run to a file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        library, case, linger = given.child
        print(_MARK + json.dumps(measure_here(library, case, float(linger))), flush=True)
        return 0
    cases = [c for c in CASES if c in given.filter.split(",")]
    if not cases:
        parser.error(f"expected cases among {', '.join(CASES)}, got {given.filter!r}")
    _say("imports")
    imports = import_times(given.imports)
    runs = measure(cases, given.repetitions, given.linger)
    for case in cases:
        for run in runs[Variant(case, JAX)]:
            if "failure" in run:
                raise SystemExit(f"JAX could not be measured: {run['failure']}")
    rows = rows_of(runs, imports)
    show(rows)
    if given.json:
        records = [
            {**asdict(v), "label": v.label, "runs": [{k: x for k, x in r.items() if k != "values"} for r in all_runs]}
            for v, all_runs in runs.items()
        ]
        table = [
            {k: None if x == inf else x for k, x in asdict(row).items()} | {"verdict": row.verdict} for row in rows
        ]
        Path(given.json).write_text(json.dumps({"rows": table, "variants": records, "imports": imports}, indent=1))
    return int(any(row.verdict == "NOT MET" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
