"""All exceptions: user errors and device failures are separate trees.

A `UserError` is raised by the call that made the mistake and is never retried on another device. A `DeviceFailure`
moves the work to the next device. It reaches the user only with `options(on_fallback="error")` and in loaded plans.
"""

import re
from typing import Any, Final

_OF_AN_OP: Final = re.compile(r"^\[\w+\] ")


class YosegiError(Exception):
    """The base class of all exceptions of Yosegi."""


class UserError(YosegiError):
    """A mistake in the program. Its text reads `[op] expected …, got …; fix`."""

    module: Any = None
    """The outermost module whose call the error has passed so far, the path from it, and the text without the path."""

    def of(self, op_name: str) -> "UserError":
        """This error with the name of the op in front of its text."""
        text = str(self)
        return self if text.startswith("[") else type(self)(f"[{op_name}] {text}")

    def retold(self, name: str) -> "UserError":
        """This error with `name` in place of the op's name: the function that the user called."""
        return type(self)(_OF_AN_OP.sub("", str(self))).of(name)


class ShapeError(UserError, ValueError):
    """Shapes that do not match each other or the operation."""


class NoDimensionsError(ShapeError, TypeError):
    """A 0-d tensor where its length or its elements are asked for, which Python tells as a `TypeError`."""


class AxisError(UserError, ValueError, IndexError):
    """An axis outside the tensor's dimensions, or named twice."""


class DTypeError(UserError, TypeError):
    """A dtype the operation is not defined for, or dtypes without a common one."""


class IndexingError(UserError, IndexError):
    """An index out of range, or of a kind that cannot index."""


class ArgumentError(UserError, ValueError):
    """Any other invalid argument."""


class PartialSumError(ArgumentError):
    """A sum of a value of which each rank has a part, and of one that every rank has."""


class TraceError(UserError, TypeError):
    """A traced function needs a value that exists only in a replay."""

    def retold(self, name: str) -> UserError:
        """This error itself: it belongs to the traced function."""
        return self


class NotFinite(YosegiError, FloatingPointError):
    """An operation made a NaN or an infinity under `options(check_nan=True)`."""


class ValuesLost(YosegiError):
    """Values that existed only in a lost memory. Evaluation computes them again; users never see this."""

    def __init__(self, space: str, reason: str) -> None:
        super().__init__(f"the values in {space} are lost: {reason}")
        self.space = space


class FallbackWarning(UserWarning):
    """Work did not run on its device. Emitted with `options(on_fallback="warn")`."""


class PlanRefused(UserError):
    """A saved plan cannot run as it did. The text names the change."""


class DeviceFailure(YosegiError):
    """A device failed on a correct program."""


class Unsupported(DeviceFailure):
    """The device does not support this region; it is never asked again."""


class OutOfMemory(DeviceFailure):
    """The device has too little memory for the region."""


class CompileFailure(DeviceFailure):
    """The device's compiler refused the region."""


class NoSuchVariant(CompileFailure):
    """A library does not have this variant of the region. This is not a failure."""


class LaunchFailure(DeviceFailure):
    """The compiled region failed when it ran."""


class NotReady(DeviceFailure):
    """The region is not compiled yet. Another device computes meanwhile; the device is not quarantined."""


class ToleranceMissed(DeviceFailure):
    """The error of a result exceeds the user's tolerance: another precision must compute it."""

    def __init__(self, message: str, made: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.made = made
        """The result, used if no better one exists."""


class DeviceLost(DeviceFailure):
    """The device itself is gone."""
