"""Checkpoints: the whole state of a run in files that a crash cannot leave half-written."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .._tensor.files import load, save
from .._tensor.tensor import Tensor
from .._tensor.tree import flatten, paths, unflatten
from ..errors import ArgumentError
from ..ops.creation import asarray
from ..ops.random import Generator
from .loader import Loader

_ENDING = ".safetensors"


class Checkpoints:
    """A folder of checkpoints, of which the last ones are kept.

    Parameters
    ----------
    folder : path
        The folder. It is made if it is not there.
    keep : int
        The number of checkpoints that are kept.

    Examples
    --------
    >>> import tempfile
    >>> import yosegi as ys
    >>> checkpoints = ys.training.Checkpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in range(1, 4):
    ...     checkpoints.save(step, {"w": ys.full((2,), float(step)), "rng": ys.random.default_rng(step)})
    >>> checkpoints.steps()
    [2, 3]
    >>> step, tree = checkpoints.restore({"w": ys.zeros((2,)), "rng": ys.random.default_rng(0)})
    >>> step, tree["w"].tolist(), tree["rng"]
    (3, [3.0, 3.0], Generator(seed=3, draws=0))
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3) -> None:
        if keep < 1:
            raise ArgumentError(f"[Checkpoints] expected to keep at least 1, got {keep}")
        self._folder, self._keep = Path(folder), keep
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, in order."""
        return sorted(int(p.name[5 : -len(_ENDING)]) for p in self._folder.glob(f"step-*{_ENDING}"))

    def _file(self, step: int) -> Path:
        return self._folder / f"step-{step:09}{_ENDING}"

    def save(self, step: int, tree: Any) -> None:
        """Write a checkpoint, and delete the oldest ones.

        Parameters
        ----------
        step : int
            The number of the step.
        tree : tree
            The state: tensors, arrays, numbers, strings, generators of `ys.random` and loaders in any containers, such
            as `{"optimizer": optimizer, "rng": rng, "loader": loader}`.
        """
        leaves = {path: _stored(leaf) for path, leaf in zip(paths(tree), flatten(tree)[0], strict=True)}
        save(self._file(step), leaves)
        for old in self.steps()[: -self._keep]:
            self._file(old).unlink(missing_ok=True)
        for partial in self._folder.glob("*.partial"):  # of a process that was killed
            partial.unlink(missing_ok=True)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Read the last checkpoint. A damaged one is reported by a `RuntimeWarning`, and the one before it is taken.

        Parameters
        ----------
        like : tree
            A tree with the containers, shapes and dtypes of the one that was saved. Its generators and loaders are set
            to the saved state.

        Returns
        -------
        tuple or None
            The number of the step and the tree; `None` if there is no checkpoint.

        Raises
        ------
        ArgumentError
            If names, shapes or dtypes differ from those of `like`. The text lists all of them, and nothing is changed.
        """
        for step in reversed(self.steps()):
            try:
                found = load(self._file(step), verify=True)
            except ArgumentError as error:
                warnings.warn(f"[restore] skipped the checkpoint of step {step}: {error}", RuntimeWarning, stacklevel=2)
                continue
            return step, _restored(found, like)
        return None


def _stored(leaf: Any) -> Any:
    return list(leaf.state) if isinstance(leaf, (Generator, Loader)) else leaf


def _restored(found: dict[str, Any], like: Any) -> Any:
    leaves, structure = flatten(like)
    names = paths(like)
    faults = [f"{name} is missing" for name in names if name not in found]
    faults += [f"{name} is unknown" for name in found if name not in names]
    for name, leaf in zip(names, leaves, strict=True):
        if name in found and _kind(found[name]) != (wanted := _kind(_stored(leaf))):
            faults.append(f"{name} is {_kind(found[name])}, expected {wanted}")
    if faults:
        raise ArgumentError("[restore] expected the leaves of `like`, got differences:\n  " + "\n  ".join(faults))
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, (Generator, Loader)):
            leaf.state = tuple(found[name])
    made = [
        leaf if isinstance(leaf, (Generator, Loader)) else found[name] for name, leaf in zip(names, leaves, strict=True)
    ]
    return unflatten(structure, made)


def _kind(leaf: Any) -> str:
    """The part of a leaf that must agree: shape and dtype, or the class."""
    if isinstance(leaf, (Tensor, np.ndarray, np.generic)):
        t = asarray(leaf)
        return f"{t.dtype.name}{list(t.shape)}"
    return type(leaf).__name__
