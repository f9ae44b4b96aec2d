"""Files that are kept between processes: what was compiled, what was found out.

Several processes may use one folder: a file is written under a name of its own and then moved into place. A file that
is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAGIC: Final = b"yosegi1\n"
_HEAD: Final = len(_MAGIC) + hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Where files are kept: YOSEGI_CACHE_DIR, or a folder in the user's cache."""
    chosen = os.environ.get("YOSEGI_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "yosegi"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "yosegi" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "yosegi"


def written(path: Path, content: bytes) -> None:
    """Put a file in place as a whole, or not at all: a cache that cannot be written is only slower."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise


def sealed(path: Path, content: bytes) -> None:
    """Put a file in place with a digest of its content, for `unsealed`."""
    written(path, _MAGIC + hashlib.sha256(content).digest() + content)


def unsealed(path: Path) -> bytes | None:
    """The content of a sealed file; `None` if there is none, or not as it was written."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    content = stored[_HEAD:]
    whole = stored.startswith(_MAGIC) and hashlib.sha256(content).digest() == stored[len(_MAGIC) : _HEAD]
    return content if whole else None
