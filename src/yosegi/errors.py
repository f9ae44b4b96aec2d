"""Every exception: the user's mistakes and a device's failures are different trees.

A `UserError` is raised by the call that made the mistake and is never retried on another device. A `DeviceFailure`
is the runtime's own business: it moves the work to the next device and reaches the user only on request.
"""

import re
from typing import Any, Final

_OF_AN_OP: Final = re.compile(r"^\[\w+\] ")


class YosegiError(Exception):
    """Root of everything Yosegi raises on purpose."""


class UserError(YosegiError):
    """A mistake in the program. Its text reads `[op] expected …, got …; fix`."""

    def of(self, op_name: str) -> "UserError":
        """The same mistake, told as `op_name`'s."""
        text = str(self)
        return self if text.startswith("[") else type(self)(f"[{op_name}] {text}")

    def retold(self, name: str) -> "UserError":
        """The same mistake as that of `name`, whose call it was, and not of an op inside."""
        return type(self)(_OF_AN_OP.sub("", str(self))).of(name)


class ShapeError(UserError, ValueError):
    """Shapes that do not fit together, or do not fit the operation."""


class AxisError(UserError, ValueError, IndexError):
    """An axis outside the tensor's dimensions, or named twice."""


class DTypeError(UserError, TypeError):
    """A dtype the operation is not defined for, or dtypes without a common one."""


class IndexingError(UserError, IndexError):
    """An index out of range, or of a kind that cannot index."""


class ArgumentError(UserError, ValueError):
    """Any other argument that does not fit."""


class TraceError(UserError, TypeError):
    """A traced function asked for a value that exists only when it is replayed."""

    def retold(self, name: str) -> UserError:
        """The mistake of the traced function, whatever asked."""
        return self


class ValuesLost(YosegiError):
    """Values that only one memory had are gone with it. Evaluation computes them again; users never see this."""

    def __init__(self, space: str, reason: str) -> None:
        super().__init__(f"the values in {space} are lost: {reason}")
        self.space = space


class FallbackWarning(UserWarning):
    """Work did not run on the device it was meant for. Told with `options(on_fallback="warn")`."""


class PlanRefused(UserError):
    """A saved plan that cannot run as it was: something has changed, which the text names."""


class DeviceFailure(YosegiError):
    """Something a device could not do, though the program is right."""


class Unsupported(DeviceFailure):
    """The device has no way to run this region; it is never asked again."""


class OutOfMemory(DeviceFailure):
    """The device has no room for a buffer of the region."""


class CompileFailure(DeviceFailure):
    """The device's compiler refused the region."""


class NoSuchVariant(CompileFailure):
    """A library has fewer ways to compute the region than it was asked for: nothing has failed."""


class LaunchFailure(DeviceFailure):
    """The compiled region failed when it ran."""


class NotReady(DeviceFailure):
    """The region is not compiled yet. Another device serves meanwhile; this says nothing against the one that will."""


class ToleranceMissed(DeviceFailure):
    """A result was further from the truth than the user's tolerance: another precision must compute it."""

    def __init__(self, message: str, made: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.made = made
        """The result: if there is no better one, it is the best there is."""


class DeviceLost(DeviceFailure):
    """The device itself is gone."""
