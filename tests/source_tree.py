"""Count files, lines and name clashes of the package by folder: `python tests/source_tree.py [FOLDER]`.

The table in `docs/explanation/source-tree.md` has these figures. `FOLDER` is another checkout's `src/yosegi`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "yosegi"


def lines_of(files: Iterable[Path]) -> int:
    """The lines of files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def clashes(owners: Iterable[tuple[str, Path]]) -> tuple[int, int]:
    """Names that several files have, and those of them that are not in folders of devices alone."""
    files = defaultdict(list)
    for name, file in owners:
        files[name].append(file)
    several = [found for found in files.values() if len(found) > 1]
    return len(several), sum(any("devices" not in file.parts for file in found) for found in several)


def main(package: Path) -> None:
    files = sorted(package.rglob("*.py"))
    folders = defaultdict(list)
    for file in files:
        folders[file.relative_to(package).parts[0] if file.parent != package else "package root"].append(file)
    for folder, own in folders.items():
        print(f"{folder:14} {len(own):4} files {lines_of(own):7,} lines")
    print(f"{'total':14} {len(files):4} files {lines_of(files):7,} lines")
    print(f"runtime without tools: {lines_of(files) - lines_of(folders['tools']):,} lines")
    print("entries in the package root:", sum(not entry.name.startswith("__pycache__") for entry in package.iterdir()))
    names = [(file.name, file) for file in files if file.name != "__init__.py"]
    classes = [
        (node.name, file)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    print("file names used several times: {}, apart from devices {}".format(*clashes(names)))
    print("class names used several times: {}, apart from devices {}".format(*clashes(classes)))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else PACKAGE)
