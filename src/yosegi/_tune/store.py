"""Files that one process leaves for the next: compiled programs, and what trials found out.

Several processes may use one folder: a file is written under a name of its own and then moved into place. A file that
is damaged is as good as none, and is moved out of the way.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any, Final, TypeVar

from .._graph import decode
from .._graph.decode import Malformed
from .._run.progress import show
from .._run.sysctl import sysctl_text

R = TypeVar("R")

_MAGIC: Final = b"yosegi1\n"
_TELLING: Final = ("name", "flags", "Features", "stepping", "implementer", "part")
"""The ends of the keys of those lines of the system's processor information that state its features."""
_PLACES: Final = ("YOSEGI_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME")
_HEAD: Final = len(_MAGIC) + hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where files are kept: YOSEGI_CACHE_DIR, or a folder in the user's cache."""
    return _folder(*[os.environ.get(name, "") for name in _PLACES])


@cache
def _folder(chosen: str, caches: str, local: str, home: str) -> Path:
    """The cache folder for these values of the environment; the library itself reads `home`."""
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "yosegi"
    if os.name == "nt":
        return Path(local or Path.home()) / "yosegi" / "cache"
    return Path(caches or Path.home() / ".cache") / "yosegi"


@cache
def processor(path: str = "/proc/cpuinfo") -> str:
    """The processor and what it announces to be able to do: much of what is kept belongs to it."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {sysctl_text('hw.model') or platform.processor()}"
    return "\n".join(line for line in lines if line.partition(":")[0].rstrip().endswith(_TELLING))


def digest_of(*texts: str) -> str:
    """Texts as a short one, for the names of files."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@cache
def package_digest() -> str:
    """The content of this package's files, as a short text: what was found out with one version says little of another,
    whose kernels may be others."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time into the block, of those that keep the same file. Where files cannot be locked, or the
    folder cannot be written, all may enter: they do the same work twice."""
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
    except (ImportError, OSError):
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def written(path: Path, content: bytes) -> OSError | None:
    """Put a file in place as a whole, or not at all: a cache that cannot be written is only slower, and one
    warning says so. Gives the reason if it could not be."""
    failure = _written(path, content)
    if failure is not None and path.is_relative_to(cache_folder()):
        reason = failure.strerror or str(failure)
        show(f"nothing can be kept in {cache_folder()} ({reason}): every process compiles and measures anew")
    return failure


def _written(path: Path, content: bytes) -> OSError | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        return error
    return None


def sealed(path: Path, content: bytes) -> None:
    """Put a file in place with a digest of its name and content, for `unsealed`."""
    written(path, _MAGIC + _digest(path, content) + content)


def unsealed(path: Path) -> bytes | None:
    """The content of a sealed file; `None` if there is none. One that is not as it was written, or was written under
    another name, is set aside."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[_HEAD:]
    if stored[:_HEAD] == _MAGIC + _digest(path, content):
        return content
    set_aside(path)
    return None


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()


def set_aside(path: Path) -> None:
    """Move a file that is of no use out of the way."""
    with suppress(OSError):
        os.replace(path, path.with_suffix(".damaged"))


def checked(path: Path, read: Callable[[Any], R]) -> R | None:
    """The content of a JSON file, decoded by `read`; `None` if there is none. A malformed file is set aside."""
    try:
        return read(decode.loads(path.read_bytes()))
    except OSError:
        return None
    except Malformed:
        set_aside(path)
        return None


class Programs:
    """Compiled programs in a folder, each under the hash of what it was made from."""

    def __init__(self, folder: str, identity: str) -> None:
        self._folder = folder
        self._identity = identity
        """The compiler and the machine: another compiler or another machine finds none of the programs."""

    def name(self, source: str) -> str:
        """The name of a source's program."""
        return hashlib.sha256(f"{self._identity}\n{source}".encode()).hexdigest()

    def path(self, name: str) -> Path:
        """The file of a program."""
        return cache_folder() / self._folder / f"{name}.bin"

    def get(self, name: str) -> bytes | None:
        """A program, if there is one and it is whole."""
        return unsealed(self.path(name))

    def put(self, name: str, program: bytes) -> None:
        """Keep a program."""
        sealed(self.path(name), program)

    def reject(self, name: str) -> None:
        """Move a program that is of no use out of the way."""
        set_aside(self.path(name))


class ProgramCache(ABC):
    """Compiled programs: in memory by source, in files by source and `identity`. Counts the programs that were built
    from source and those that came from a file."""

    def __init__(self, identity: str, compilers: int = 1) -> None:
        """`compilers` is the number of sources that may be compiled at the same time."""
        self._stored = Programs("programs", identity)
        self._programs: dict[str, Future[Any]] = {}
        self._lock = Lock()
        self._compilers = BoundedSemaphore(compilers)
        self.built = 0
        self.loaded = 0

    def adopt(self, source: str, code: bytes) -> None:
        """Take what another process has built of a source."""
        program = self.load(code)
        if program is not None:
            with self._lock:
                self._programs[source] = Future()
                self._programs[source].set_result(program)
                self.loaded += 1
            self._stored.put(self._stored.name(source), code)

    def sources(self) -> list[str]:
        """The sources of all programs that are in memory."""
        return list(self._programs)

    def get(self, source: str) -> Any:
        """The program of a source. Raises `CompileFailure` with the compiler's log."""
        with self._lock:
            program = self._programs.get(source)
            is_first = program is None
            if program is None:
                program = self._programs[source] = Future()
        if is_first:
            try:
                with self._compilers:
                    program.set_result(self._found(source) or self._made(source))
            except BaseException as failure:
                with self._lock:
                    self._programs.pop(source, None)
                program.set_exception(failure)
        return program.result()

    @abstractmethod
    def load(self, code: bytes) -> Any | None:
        """The program of what `build` once gave; `None` if the driver does not take it any more."""

    @abstractmethod
    def build(self, source: str) -> tuple[Any, bytes | None]:
        """The program of a source, and what to keep of it, if anything. Raises `CompileFailure`."""

    def _found(self, source: str) -> Any | None:
        name = self._stored.name(source)
        code = self._stored.get(name)
        if code is None:
            return None
        program = self.load(code)
        if program is None:
            self._stored.reject(name)
        else:
            with self._lock:
                self.loaded += 1
        return program

    def _made(self, source: str) -> Any:
        program, code = self.build(source)
        with self._lock:
            self.built += 1
        if code is not None:
            self._stored.put(self._stored.name(source), code)
        return program


def verdict(name: str, identity: str, trial: Callable[[], str | None]) -> str | None:
    """Why something must not be used on this machine, or `None` if it came through a trial.

    The trial is made once for each identity, which says what is installed, and its outcome kept.
    """
    short = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = cache_folder() / f"{name}-trial-{short}.json"
    known = checked(path, _failures_of)
    if known is not None:
        return known[0]
    failure = trial()
    written(path, json.dumps({"failure": failure}).encode())
    return failure


def _failures_of(data: Any) -> tuple[str | None]:
    (failure,) = decode.record(data, "", "failure")
    return (None if failure is None else decode.text(failure, "failure"),)
