"""`ys.save` and `ys.load`: trees of tensors as safetensors files.

The format is one of plain data: eight bytes of length, a header in JSON with each tensor's dtype, shape and place, then
the bytes of the tensors. Nothing in a file is ever executed. Other libraries read the tensors under their paths in the
tree, such as "layers.3.weight"; the structure of the tree and a checksum are in the header's metadata.

Files are memory-mapped: a tensor is read from the disk when it is used. Several files with an index are one tree.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import ArgumentError
from ..ops.creation import asarray
from .dtype import ALL, DType
from .interchange import Array, plain
from .op import from_plain
from .tensor import Tensor
from .tracebacks import short_tracebacks
from .tree import flatten, paths, unflatten

_NAMES: Final = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "complex128": "C128",
}  # fmt: skip
"""The dtypes by the names that the format has for them; complex128 is ours."""
_DTYPES: Final = {_NAMES[d.name]: d for d in ALL}
_STRUCTURE: Final = "yosegi._tensor.tree"
_CHECKSUM: Final = "yosegi.sha256"
_INDEX: Final = ".index.json"
_LONGEST_HEADER: Final = 100 << 20  # bytes, as the format has it
_ALIGNMENT: Final = 8
_NUMBERS: Final = (bool, int, float, str)


@short_tracebacks
def save(path: str | os.PathLike[str], tree: Any, /, *, shard_bytes: int | None = None) -> None:
    """Write a tree of tensors to a safetensors file.

    - `path`: the file. It is replaced as a whole when all is on the disk: a crash leaves the old one or the new one.
    - `tree`: dicts with string keys, lists, tuples and `None`, of tensors, arrays, numbers and strings. Other classes
      would have to be found again by name when a file is read, so they are refused: save their parts in a dict.
    - `shard_bytes`: write several files of about this size, and at `path`, which ends with ".index.json", their index.

    >>> import tempfile, os
    >>> import yosegi as ys
    >>> file = os.path.join(tempfile.mkdtemp(), "params.safetensors")
    >>> ys.save(file, {"w": ys.ones((2, 3)), "steps": 7})
    >>> ys.load(file)["w"].shape, ys.load(file)["steps"]
    ((2, 3), 7)
    """
    arrays: dict[str, tuple[DType, Array]] = {}
    structure = {_STRUCTURE: json.dumps(_described(tree, "", arrays))}
    target = Path(path)
    if shard_bytes is None:
        _write(target, arrays, structure)
        return
    if not target.name.endswith(_INDEX):
        raise ArgumentError(f"[save] expected a path that ends with {_INDEX} for an index, got {target.name}")
    shards = list(_shards(arrays, shard_bytes))
    stem = target.name.removesuffix(_INDEX).removesuffix(".safetensors")
    places: dict[str, str] = {}
    for n, names in enumerate(shards, 1):
        file = f"{stem}-{n:05}-of-{len(shards):05}.safetensors"
        _write(target.with_name(file), {name: arrays[name] for name in names}, {})
        places.update(dict.fromkeys(names, file))
    total = sum(array.nbytes for _, array in arrays.values())
    index = {"metadata": {"total_size": total, **structure}, "weight_map": places}
    _replace(target, [json.dumps(index, indent=2).encode()])


def _shards(arrays: Mapping[str, tuple[DType, Array]], limit: int) -> Iterator[list[str]]:
    """The names in groups of at most so many bytes, or of one."""
    group: list[str] = []
    used = 0
    for name, (_, array) in arrays.items():
        if group and used + array.nbytes > limit:
            yield group
            group, used = [], 0
        group.append(name)
        used += array.nbytes
    yield group


def _write(target: Path, arrays: Mapping[str, tuple[DType, Array]], metadata: dict[str, str]) -> None:
    entries: dict[str, Any] = {}
    content: list[memoryview] = []
    end = 0
    for name, (dtype, array) in arrays.items():
        start, end = end, end + array.nbytes
        entries[name] = {"dtype": _NAMES[dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
        content.append(memoryview(np.ascontiguousarray(plain(array)).reshape(-1).view(np.uint8)))
    metadata = {**metadata, _CHECKSUM: _checksum(entries, metadata, content)}
    text = json.dumps({"__metadata__": metadata, **entries}, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    _replace(target, [len(text).to_bytes(8, "little") + text, *content])


def _checksum(entries: Mapping[str, Any], metadata: Mapping[str, str], content: Iterable[Any]) -> str:
    """The checksum of the names, dtypes, shapes, structure and bytes of a file."""
    made = sha256(json.dumps([entries, metadata.get(_STRUCTURE)], sort_keys=True).encode())
    for part in content:
        made.update(part)
    return made.hexdigest()


def _replace(target: Path, content: Iterable[bytes | memoryview]) -> None:
    """Replace a file as a whole: after a crash or a loss of power, the old content is there or the new one."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    with suppress(OSError):  # some systems cannot open a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _described(tree: Any, path: str, arrays: dict[str, tuple[DType, Array]]) -> Any:
    """The tree as JSON: containers as they are, a tensor as its name in the file."""
    if isinstance(tree, (Tensor, np.ndarray, np.generic)):
        t = asarray(tree)
        name = path or "tensor"
        if name in arrays:
            raise ArgumentError(f"[save] expected paths that differ, got two leaves at {name}; rename a key")
        arrays[name] = t.dtype, t.numpy()
        return {"tensor": name}
    if tree is None or type(tree) in _NUMBERS:
        return {"value": tree}
    kind = type(tree)
    if kind is dict:
        for key in tree:
            if type(key) is not str:
                raise ArgumentError(f"[save] expected dicts with string keys, got {key!r} at {path or 'the root'}")
        return {"dict": {k: _described(v, _joined(path, k), arrays) for k, v in tree.items()}}
    if kind is list or kind is tuple:
        return {kind.__name__: [_described(v, _joined(path, str(n)), arrays) for n, v in enumerate(tree)]}
    where = path or "the root"
    raise ArgumentError(
        f"[save] expected dicts, lists, tuples, tensors, numbers and strings, got {kind.__name__} at {where}; save its "
        "parts in a dict"
    )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@short_tracebacks
def load(path: str | os.PathLike[str], /, like: Any = None, *, verify: bool = False) -> Any:
    """Read a safetensors file: the tree that `save` wrote, or, of a file by another library, a dict by names.

    - `path`: the file, or the index of several, which ends with ".index.json". Files are memory-mapped: a tensor is
      read from the disk when it is used. Do not write into a file that is in use; `save` replaces it.
    - `like`: a tree of the same structure, of any containers, whose leaves are replaced in order. Shapes must agree.
    - `verify`: read the whole file now and compare its checksum.

    Raises `ArgumentError` if the file is damaged or is no safetensors file.

    >>> import tempfile, os
    >>> import yosegi as ys
    >>> file = os.path.join(tempfile.mkdtemp(), "params.safetensors")
    >>> ys.save(file, [ys.asarray([1, 2])])
    >>> ys.load(file, verify=True)
    [Tensor([1, 2], dtype=int64, device=cpu)]
    """
    target = Path(path)
    if target.name.endswith(_INDEX):
        tensors, metadata = _of_index(target, verify)
    else:
        tensors, metadata = _of_file(target, verify)
    if _STRUCTURE not in metadata:
        made: Any = tensors
    else:
        try:
            made = _rebuilt(json.loads(metadata[_STRUCTURE]), tensors)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise _damaged(target, "the tree in its metadata does not fit its tensors") from None
    return made if like is None else _like(made, like)


def _of_index(path: Path, verify: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        index = json.loads(path.read_bytes())
        places, metadata = dict(index["weight_map"]), dict(index.get("metadata", {}))
        files = {name: _of_file(path.with_name(name), verify)[0] for name in dict.fromkeys(places.values())}
        return {name: files[file][name] for name, file in places.items()}, metadata
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise _damaged(path, "its index is no JSON, or does not fit the files") from None


def _of_file(path: Path, verify: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    header, data = _read(path)
    metadata = header.pop("__metadata__", {})
    metadata = metadata if isinstance(metadata, dict) else {}
    if verify and metadata.get(_CHECKSUM) != _checksum(header, metadata, [data]):
        raise _damaged(path, "its checksum is another one")
    return {name: _tensor(path, name, entry, data) for name, entry in header.items()}, metadata


def _damaged(path: Path, why: str) -> ArgumentError:
    return ArgumentError(f"[load] expected a safetensors file, got {path}, which is none or is damaged: {why}")


def _read(path: Path) -> tuple[dict[str, Any], memoryview]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A private copy of each page that is written to: the file stays as it is.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if size else b"")
    length = int.from_bytes(content[:8], "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise _damaged(path, "its header is longer than the file")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is no JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    return header, content[8 + length :]


def _tensor(path: Path, name: str, entry: Any, data: memoryview) -> Tensor:
    try:
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, f"it does not say what {name} is") from None
    sound = all(type(n) is int and n >= 0 for n in (*shape, start, end))
    if not sound or end > len(data) or end - start != prod(shape) * dtype.itemsize:
        raise _damaged(path, f"the bytes of {name} are not there")
    stored = np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype.numpy
    array = np.frombuffer(data[start:end], stored.newbyteorder("<")).reshape(shape)
    is_ready = sys.byteorder == "little" and array.flags.aligned and dtype.name != "bool"  # a bool may be a 2 in a file
    return from_plain(array if is_ready else array.astype(stored), dtype.name)


def _rebuilt(described: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = described.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _rebuilt(part, tensors) for key, part in content.items()}
    parts = [_rebuilt(part, tensors) for part in content]
    return {"list": list, "tuple": tuple}[kind](parts)


def _like(made: Any, like: Any) -> Any:
    """The leaves of a file in the containers of a tree."""
    leaves: Sequence[Any] = flatten(made)[0]
    old, structure = flatten(like)
    if len(leaves) != len(old):
        raise ArgumentError(f"[load] expected {len(old)} leaves, as `like` has, got {len(leaves)} in the file")
    for new, known, path in zip(leaves, old, paths(like), strict=True):
        if isinstance(new, Tensor) and asarray(known).shape != new.shape:
            raise ArgumentError(
                f"[load] expected shape {asarray(known).shape} at {path or 'the root'}, got {new.shape}"
            )
    return unflatten(structure, leaves)


__all__ = ["load", "save"]
