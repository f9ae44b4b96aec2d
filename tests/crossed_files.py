"""Count the files of the package whose functions run in a call: `python tests/crossed_files.py`.

The cold call is the first evaluation of a process. The jitted call is the third of its function, which replays a plan.
Code that runs while a module is imported does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import yosegi as ys

PACKAGE = Path(ys.__file__).parent


def crossed(call: Callable[[], Any]) -> list[str]:
    """The files of the package that have a function which runs in this thread during a call."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and not _is_import(frame):
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(f).relative_to(PACKAGE)) for f in files if Path(f).is_relative_to(PACKAGE))


def _is_import(frame: FrameType | None) -> bool:
    """True if a module is being imported."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def cold_and_jitted() -> tuple[list[str], list[str]]:
    """The files that the cold call crosses, and those of a jitted call."""
    x, w, b = (np.ones(shape, np.float32) for shape in ((8, 8), (8, 8), (8,)))
    cold = crossed(lambda: ys.tanh(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)).numpy())
    layer = ys.jit(lambda x, w, b: ys.tanh(x @ w + b))
    arguments = [ys.asarray(a) for a in (x, w, b)]
    for _ in range(2):
        layer(*arguments).numpy()
    return cold, crossed(lambda: layer(*arguments).numpy())


if __name__ == "__main__":
    for name, files in zip(("cold call", "jitted call"), cold_and_jitted(), strict=True):
        print(f"{name}: {len(files)} files\n  " + "\n  ".join(files))
