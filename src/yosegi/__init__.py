"""Yosegi: one tensor program, each operation on the device measured to be best for it.

`yosegi` is a namespace of the Python Array API standard, and a little more: `jit`, `grad`, `explain`, `devices`.
"""

from math import e, inf, nan, pi

from . import devices as _folder  # loaded first: importing it later would put the folder in the function's place
from . import errors, nn
from ._place.plan import Plan
from ._run.device import devices
from ._run.evaluate import LoadedPlan, eval, explain, load_plan, memory_stats, plan
from ._tensor.dtype import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._tensor.dtype import bool_ as bool
from ._tensor.info import API_VERSION as __array_api_version__
from ._tensor.info import __array_namespace_info__
from ._tensor.options import deterministic, options
from ._tensor.tensor import Tensor
from ._tensor.tree import tree_map
from ._trace.grad import grad, value_and_grad, vjp
from ._trace.jit import jit
from ._tune.calibration import calibrate
from .ops import fft, linalg, random
from .ops.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from .ops.einsum import einsum
from .ops.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    divide,
    equal,
    exp,
    expm1,
    floor,
    floor_divide,
    greater,
    greater_equal,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    negative,
    nextafter,
    not_equal,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    round,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    subtract,
    tan,
    tanh,
    trunc,
    where,
)
from .ops.index import take, take_along_axis
from .ops.linalg import matmul, matrix_transpose, tensordot, vecdot
from .ops.reduce import (
    all,
    any,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    std,
    sum,
    var,
)
from .ops.shape import (
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    tril,
    triu,
    unstack,
)
from .ops.sort import (
    argmax,
    argmin,
    argsort,
    count_nonzero,
    isin,
    nonzero,
    searchsorted,
    sort,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from .ops.types import astype, can_cast, finfo, iinfo, isdtype, result_type

__version__ = "0.1.0"
newaxis = None
