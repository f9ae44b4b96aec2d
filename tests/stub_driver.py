"""An OpenCL driver for tests, which runs on every Linux machine with a C++ compiler and fails on demand.

`tests/drivers/stub_icd.cpp` is the driver: one GPU device with OpenCL 1.2 and float64, whose kernels a C++ compiler
builds and the host runs. `build` compiles it, `environment` gives the variables under which a child process finds this
driver and no other, and `set_faults` changes what fails while that process runs:

    variables = environment(tmp_path, run="segfault every 3", build="abort hash 5")
    subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | variables)
    set_faults(Path(variables["STUB_ICD_FAULTS"]), ["run hang containing exp("])

A fault is a line `<where> <what> <which>`. The first line that matches a build or a launch decides.

where
    `build`: compiling a program from source. Loading a binary is no build.
    `run`: a launch of a kernel, also of a program that was loaded from a binary.
what
    `segfault`, `abort`, `hang`, `exit` (ends the process with status 3), `memory` (takes memory until the limit of the
    process, at most 64 GB, then aborts like a C++ program without memory; set RLIMIT_AS first), `error` or
    `error:<code>` (returns an OpenCL error: -11 from a build, -59 from a launch), `wrong` (changes the first element
    of the last buffer that the kernel may write; as a build fault it stays in the program and in its binary).
which
    `every <n>`: each n-th build or launch. The count goes on over processes; `set_faults` starts it again.
    `hash <n>`: programs with `source_hash(source) % n == 0`, so that a program fails always or never.
    `containing <text>`: programs whose source contains the text, which is the rest of the line.

A build or a launch is counted only while some line for it says `every`. Faults of `build` strike inside of
`clBuildProgram`. Faults of `run` strike in the queue's thread, except `error`, which `clEnqueueNDRangeKernel` returns.
A result of `wrong` is far off: floats below a million get 1 added and larger ones become 1, 16-bit elements lose or get
their second highest bit, other elements their lowest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("drivers") / "stub_icd.cpp"
COMPILER = shutil.which(os.environ.get("STUB_ICD_COMPILER", "c++")) if sys.platform.startswith("linux") else None
"""The C++ compiler, which builds the driver, and by which the driver builds programs; `None` if there is none."""

_OPTIONS = ["-std=c++17", "-O1", "-w", "-U_FORTIFY_SOURCE", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread"]
_FAULT = re.compile(
    r"(build|run) (segfault|abort|hang|exit|memory|wrong|error(:-\d+)?) ((every|hash) [1-9]\d*|containing \S.*)"
)


def build(folder: Path) -> Path:
    """Compile the driver into a folder, unless it is there.

    Parameters
    ----------
    folder
        Keeps the library, named by the hash of the driver's source. Processes may share it.

    Returns
    -------
    Path
        The shared library.
    """
    assert COMPILER is not None, "there is no C++ compiler"
    name = hashlib.sha256(SOURCE.read_bytes() + " ".join([COMPILER, *_OPTIONS]).encode()).hexdigest()[:16]
    library = folder.resolve() / f"libstub_icd-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = library.with_suffix(f".{os.getpid()}")
        command = [COMPILER, *_OPTIONS, str(SOURCE), "-o", str(unfinished), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        unfinished.replace(library)
    return library


def environment(
    folder: Path,
    library: Path | None = None,
    *,
    name: str = "",
    version: str = "1.0",
    is_unified: bool = True,
    **faults: str | Sequence[str],
) -> dict[str, str]:
    """Environment variables under which OpenCL has this driver and no other.

    Parameters
    ----------
    folder
        Gets the list of drivers, the control file and Yosegi's cache.
    library
        The driver from `build`. Without it, it is built in `folder`. Compiled programs are kept beside it.
    name, version
        A suffix of the platform's and the device's name, and the driver's version: others make another driver.
    is_unified
        False if the device reports memory of its own.
    **faults
        `build` and `run`, each with a fault or several, for example `run="segfault every 3"`.

    Returns
    -------
    dict
        The variables to add to `os.environ`. `STUB_ICD_FAULTS` is the path of the control file.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = (library or build(folder)).resolve()
    programs = library.parent / "programs"
    programs.mkdir(exist_ok=True)
    # A file, not its folder: of a folder, the loader in pyopencl's wheel adds the drivers that are installed beside it.
    drivers = folder / "stub.icd"
    drivers.write_text(f"{library}\n", encoding="utf-8")
    control = folder / "faults"
    lists = {where: [which] if isinstance(which, str) else which for where, which in faults.items()}
    set_faults(control, [f"{where} {which}" for where, several in lists.items() for which in several])
    assert COMPILER is not None
    return {
        "OCL_ICD_VENDORS": str(drivers),
        "OCL_ICD_FILENAMES": str(library),  # for the loader of Khronos, to which the other one is no folder
        "PYOPENCL_NO_CACHE": "1",  # every build reaches the driver
        "STUB_ICD_CACHE": str(programs),
        "STUB_ICD_COMPILER": COMPILER,
        "STUB_ICD_FAULTS": str(control),
        "STUB_ICD_NAME": name,
        "STUB_ICD_UNIFIED": str(int(is_unified)),
        "STUB_ICD_VERSION": version,
        "YOSEGI_CACHE_DIR": str(folder / "yosegi"),
    }


def set_faults(path: Path, lines: Iterable[str]) -> None:
    """Write the control file, and start the counts of `every` again.

    Parameters
    ----------
    path
        The control file: what `STUB_ICD_FAULTS` names.
    lines
        The faults (see the module). No line: nothing fails.

    Raises
    ------
    ValueError
        If a line is no fault.
    """
    written = list(lines)
    for line in written:
        if _FAULT.fullmatch(line) is None:
            raise ValueError(
                f"[set_faults] expected '<build|run> <what> <every n|hash n|containing text>', got {line!r}"
            )
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    for where in ("build", "run"):
        counter(path, where).unlink(missing_ok=True)
    unfinished.replace(path)


def counter(path: Path, where: str) -> Path:
    """The file whose length is the number of builds or launches that the control file at `path` has counted."""
    return path.with_name(f"{path.name}.{where}")


def source_hash(source: str) -> int:
    """The hash of a program by which `hash <n>` chooses: FNV-1a of 64 bits."""
    made = 0xCBF29CE484222325
    for byte in source.encode():
        made = (made ^ byte) * 0x100000001B3 % 2**64
    return made
