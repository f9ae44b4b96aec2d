"""Files that one process leaves for the next."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Lock

import pytest

from apple_doubles import sysctl_double
from yosegi._tune.store import ProgramCache, Programs, cache_folder, processor, verdict, written
from yosegi.errors import CompileFailure


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert cache_folder() == folder
    monkeypatch.delenv("YOSEGI_CACHE_DIR")
    assert cache_folder().name in ("yosegi", "cache")


def test_processors_of_arm_on_linux(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    core = "Features\t: fp asimd fphp\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n"
    path.write_text(f"processor\t: 0\nBogoMIPS\t: 50.00\n{core}\nprocessor\t: 1\nBogoMIPS\t: 50.00\n{core}")
    assert processor(str(path)) == "Features\t: fp asimd fphp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c"


def test_apples_computers_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were "arm64 arm": what one had measured held for the next."""
    names = []
    for name in ("MacBookPro17,1", "Mac16,8"):  # with an M1, and with an M4 Pro
        sysctl_double(monkeypatch, {"hw.model": name})
        names.append(processor(str(tmp_path / name)))  # which is no file
    assert [name.partition(" ")[2] for name in names] == ["MacBookPro17,1", "Mac16,8"]


def test_a_program_is_found_by_its_source_and_what_made_it() -> None:
    programs = Programs("programs", "a compiler")
    assert programs.get(programs.name("source")) is None
    programs.put(programs.name("source"), b"object")
    assert programs.get(programs.name("source")) == b"object"
    assert programs.get(programs.name("another")) is None
    assert Programs("programs", "another compiler").name("source") != programs.name("source")


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:20], lambda b: b"", lambda b: b[:-1] + b"\0"])
def test_a_damaged_program_is_set_aside(damage, folder: Path) -> None:  # type: ignore[no-untyped-def]
    programs = Programs("programs", "a compiler")
    programs.put(programs.name("source"), b"object")
    path = programs.path(programs.name("source"))
    path.write_bytes(damage(path.read_bytes()))
    assert programs.get(programs.name("source")) is None
    assert [p.suffix for p in path.parent.iterdir()] == [".damaged"]
    programs.put(programs.name("source"), b"object")
    assert programs.get(programs.name("source")) == b"object"


class Upper(ProgramCache):
    """Compiles to capital letters; may keep nothing, or not take what was kept."""

    def __init__(self, *, keeps: bool = True, takes: bool = True, compilers: int = 1) -> None:
        super().__init__("a compiler", compilers)
        self.keeps, self.takes = keeps, takes

    def load(self, code: bytes) -> str | None:
        return code.decode() if self.takes else None

    def build(self, source: str) -> tuple[str, bytes | None]:
        made = source.upper()
        return made, made.encode() if self.keeps else None


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [({}, {}, (0, 1)), ({"keeps": False}, {}, (1, 0)), ({}, {"takes": False}, (1, 0))],
)
def test_a_program_is_built_once_and_then_loaded(
    first: dict[str, bool], second: dict[str, bool], counts: tuple[int, int]
) -> None:
    for cache, expected in ((Upper(**first), (1, 0)), (Upper(**second), counts)):
        assert [cache.get("source"), cache.get("source")] == ["SOURCE", "SOURCE"]
        assert (cache.built, cache.loaded) == expected
    third = Upper()
    assert (third.get("source"), third.built) == ("SOURCE", 0)  # it is there again


def test_a_program_under_the_name_of_another_is_set_aside(folder: Path) -> None:
    programs = Programs("programs", "here")
    one, other = (programs.name(source) for source in ("one", "other"))
    programs.put(one, b"one's program")
    programs.path(one).rename(programs.path(other))
    assert programs.get(other) is None
    assert programs.path(other).with_suffix(".damaged").exists()


def test_nothing_is_left_half_written(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def fails(*what: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fails)
    written(folder / "file", b"content")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    Programs("programs", "a compiler").put("name", b"object")
    assert verdict("thing", "version 1", lambda: "it died") == "it died"


def test_a_trial_is_made_once_for_what_is_installed() -> None:
    trials: list[str] = []

    def trial(failure: str | None) -> str | None:
        trials.append("tried")
        return failure

    for _ in range(2):
        assert verdict("thing", "version 1", lambda: trial("it died")) == "it died"
    for _ in range(2):
        assert verdict("thing", "version 2", lambda: trial(None)) is None
    assert len(trials) == 2


def test_a_verdict_that_cannot_be_read_is_made_again(folder: Path) -> None:
    verdict("thing", "version 1", lambda: "it died")
    (path,) = folder.iterdir()
    path.write_text("nonsense")
    assert verdict("thing", "version 1", lambda: None) is None


def test_that_nothing_can_be_kept_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setattr("yosegi._run.progress._shown", set())
    for name in ("one", "two"):
        assert written(Path("/proc/nowhere") / name, b"content") is not None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("yosegi: nothing can be kept in /proc/nowhere (")


def test_one_process_at_a_time_makes_a_file(tmp_path: Path) -> None:
    """Two that qualified a driver at the same time did it twice, and slowed each other down."""
    code = (
        "import sys, time; from pathlib import Path; from yosegi._tune.store import locked\n"
        "with locked(Path(sys.argv[1]) / 'file.json'):\n"
        " print(time.monotonic()); time.sleep(0.5); print(time.monotonic())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (a, b), (c, d) = sorted([float(line) for line in run.communicate()[0].split()] for run in runs)
    assert a < b <= c < d


def test_sources_are_compiled_at_the_same_time_and_each_once() -> None:
    barrier, lock = Barrier(3), Lock()
    built: list[str] = []

    class Slow(Upper):
        def build(self, source: str) -> tuple[str, bytes | None]:
            with lock:
                built.append(source)
            barrier.wait(timeout=30)  # passes only if three are here
            return super().build(source)

    programs = Slow(compilers=3)
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(programs.get, ["a", "b", "c", "a", "b", "c"]))
    assert made == ["A", "B", "C", "A", "B", "C"]
    assert sorted(built) == ["a", "b", "c"]
    assert programs.built == 3


def test_a_source_that_failed_is_tried_again() -> None:
    class Failing(Upper):
        fails = True

        def build(self, source: str) -> tuple[str, bytes | None]:
            if self.fails:
                raise CompileFailure("no")
            return super().build(source)

    programs = Failing()
    with pytest.raises(CompileFailure, match="no"):
        programs.get("a")
    programs.fails = False
    assert programs.get("a") == "A"
