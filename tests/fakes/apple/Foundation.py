"""pyobjc's `Foundation`, as far as the Core ML device uses it."""

from __future__ import annotations

from pathlib import Path

from objc import Object, autoreleased  # type: ignore[attr-defined]


class NSURL(Object):
    """The address of a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    @classmethod
    def fileURLWithPath_(cls, path: str) -> NSURL:
        assert Path(path).is_absolute(), "a relative path"
        made: NSURL = autoreleased(cls(path))
        return made

    def path(self) -> str:
        return self._path
