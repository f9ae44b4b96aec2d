"""`ys.save` and `ys.load`: trees of tensors as safetensors files.

The format is one of plain data: eight bytes of length, a header in JSON with each tensor's dtype, shape and place, then
the bytes of the tensors. Nothing in a file is ever executed. Other libraries read the tensors under their paths in the
tree, such as "layers.3.weight"; the structure of the tree is in the header's metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
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
from .tree import flatten, paths, unflatten

_NAMES: Final = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "complex128": "C128",
}  # fmt: skip
"""The dtypes by the names that the format has for them; complex128 is ours."""
_DTYPES: Final = {_NAMES[d.name]: d for d in ALL}
_STRUCTURE: Final = "yosegi._tensor.tree"
_LONGEST_HEADER: Final = 100 << 20  # bytes, as the format has it
_ALIGNMENT: Final = 8
_NUMBERS: Final = (bool, int, float, str)


def save(path: str | os.PathLike[str], tree: Any, /) -> None:
    """Write a tree of tensors to a safetensors file.

    - `path`: the file, which is replaced as a whole when all is written.
    - `tree`: dicts with string keys, lists, tuples and `None`, of tensors, arrays, numbers and strings. Other classes
      would have to be found again by name when a file is read, so they are refused: save their parts in a dict.

    >>> import tempfile, os
    >>> import yosegi as ys
    >>> file = os.path.join(tempfile.mkdtemp(), "params.safetensors")
    >>> ys.save(file, {"w": ys.ones((2, 3)), "steps": 7})
    >>> ys.load(file)["w"].shape, ys.load(file)["steps"]
    ((2, 3), 7)
    """
    arrays: dict[str, tuple[DType, Array]] = {}
    structure = _described(tree, "", arrays)
    header: dict[str, Any] = {"__metadata__": {_STRUCTURE: json.dumps(structure)}}
    end = 0
    for name, (dtype, array) in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, array in arrays.values():
                file.write(memoryview(np.ascontiguousarray(plain(array))).cast("B") if array.size else b"")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


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


def load(path: str | os.PathLike[str], /, like: Any = None) -> Any:
    """Read a safetensors file: the tree that `save` wrote, or, of a file by another library, a dict by names.

    - `path`: the file.
    - `like`: a tree of the same structure, of any containers, whose leaves are replaced in order. Shapes must agree.

    Raises `ArgumentError` if the file is damaged or is no safetensors file.

    >>> import tempfile, os
    >>> import yosegi as ys
    >>> file = os.path.join(tempfile.mkdtemp(), "params.safetensors")
    >>> ys.save(file, [ys.asarray([1, 2])])
    >>> ys.load(file)
    [Tensor([1, 2], dtype=int64, device=cpu)]
    """
    header, data = _read(Path(path))
    metadata = header.pop("__metadata__", {})
    tensors = {name: _tensor(Path(path), name, entry, data) for name, entry in header.items()}
    if not isinstance(metadata, dict) or _STRUCTURE not in metadata:
        made: Any = tensors
    else:
        try:
            made = _rebuilt(json.loads(metadata[_STRUCTURE]), tensors)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise _damaged(Path(path), "the tree in its metadata does not fit its tensors") from None
    return made if like is None else _like(made, like)


def _damaged(path: Path, why: str) -> ArgumentError:
    return ArgumentError(f"[load] expected a safetensors file, got {path}, which is none or is damaged: {why}")


def _read(path: Path) -> tuple[dict[str, Any], memoryview]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _LONGEST_HEADER):
        raise _damaged(path, "its header is longer than the file")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is no JSON") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    return header, memoryview(content)[8 + length :]


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
    return from_plain(
        np.frombuffer(data[start:end], stored.newbyteorder("<")).reshape(shape).astype(stored), dtype.name
    )


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
