"""Names for people who extend Yosegi: ops, composites, devices, and fake devices for tests.

>>> import numpy as np
>>> import yosegi as ys
>>> from yosegi.extend import Arr, OpKind, op, rules
>>> @op(OpKind.ACTIVATION, infer=rules.real_floating, promotes_from=0, inexact=True, scalar=lambda k, x: k.mul(x, x))
... def squared(x: Arr, /) -> Arr:
...     return x * x
>>> squared(ys.asarray([2.0, 3.0])).tolist()
[4.0, 9.0]
"""

from ._graph.reference import bind
from ._place.cost_model import Speed
from ._run.device import Absent, Device, Kernel, Limits, Link
from ._schedule.fuse import Region, RegionKind
from ._tensor.composite import composite
from ._tensor.dtype import ALL as ALL_DTYPES
from ._tensor.dtype import DType
from ._tensor.node import Spec, spec
from ._tensor.op import Arr, Normal, OpKind, Tolerance, op
from ._tensor.precision import Precision
from .ops import rules
from .tools.fakes import FakeArray, FakeDevice, installed

__all__ = [
    "ALL_DTYPES", "Absent", "Arr", "DType", "Device", "FakeArray", "FakeDevice", "Kernel", "Limits", "Link", "Normal",
    "OpKind", "Precision", "Region", "RegionKind", "Spec", "Speed", "Tolerance", "bind", "composite", "installed", "op",
    "rules", "spec",
]  # fmt: skip
