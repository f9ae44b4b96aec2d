"""Compiled models on disk, so that the next process does not compile them again.

A blob belongs to a region, the settings it was compiled with, this machine's processor, the version of OpenVINO and the
source of this folder: whatever of these changes, it is not found any more.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from ..._schedule.fuse import Region
from ..._tune.store import cache_folder, package_digest, processor, sealed, unsealed
from .library import core
from .translate import signature

_LIMIT: Final = 1 << 26  # bytes of a region's constants, which its blob would hold too


@cache
def machine() -> str:
    """The identity of this machine and its software, for a cache that several machines share."""
    return "\n".join([version("openvino"), processor(), package_digest()])


def place_of(region: Region, plugin: str, settings: dict[str, Any]) -> Path | None:
    """Where a region's blob is, or would be; `None` if it is too large to be kept."""
    graph = region.graph
    held = {a for n in region.nodes for a in (n, *graph.args[n]) if "array" in graph.calls[a].attrs}
    if sum(graph.calls[a].spec.nbytes for a in held) > _LIMIT:
        return None
    digest = hashlib.sha256(f"{machine()}\n{plugin}\n{sorted(settings.items())}".encode())
    for part in signature(region):
        digest.update(b"\n")
        digest.update(part if isinstance(part, bytes) else part.encode())
    return cache_folder() / "openvino" / f"{digest.hexdigest()}.blob"


def load(place: Path, plugin: str, settings: dict[str, Any]) -> Any | None:
    """The compiled model of a blob; `None` if there is none, or a damaged one, or OpenVINO does not take it."""
    blob = unsealed(place)
    with suppress(Exception):
        return None if blob is None else core().import_model(blob, plugin, settings)
    return None


def save(place: Path, compiled: Any) -> None:
    """Keep a compiled model; a plugin that cannot export it is only slower the next time."""
    with suppress(Exception):
        blob = compiled.export_model()
        sealed(place, blob if isinstance(blob, bytes) else blob.getvalue())
