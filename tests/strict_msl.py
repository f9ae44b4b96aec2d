"""MSL by clang in the mode of C++ for OpenCL, which has the same address spaces.

It refuses a pointer to the wrong one, a double, and a call that fits no function. It takes a pointer without an address
space for one to any of them, which Metal does not. Nothing runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

COMPILER = shutil.which("clang-16")
MISSING = None if COMPILER is not None else "clang-16 is not installed (Debian: apt-get install clang-16)"
"""Why nothing can be compiled, or `None`."""

_OPTIONS = ["-cc1", "-triple", "spir64", "-x", "clcpp", "-cl-std=clc++2021", "-finclude-default-header",
            "-fdeclare-opencl-builtins", "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64", "-fsyntax-only", "-ferror-limit", "5",
            "-Wno-everything", "-I", str(Path(__file__).with_name("metal_shim"))]  # fmt: skip


def refusal(source: str) -> str | None:
    """What clang says against a source, or `None`. Attributes of parameters are Metal's: `msl_code` checks them."""
    assert COMPILER is not None
    text = re.sub(r"\[\[\w+(\(\d+\))?\]\]", "", source)
    done = subprocess.run([COMPILER, *_OPTIONS, "-"], input=text, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr
