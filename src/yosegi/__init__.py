"""Yosegi: one tensor program, each operation on the device measured to be best for it.

`yosegi` is a namespace of the Python Array API standard, and a little more: `jit`, `grad`, `explain`, `devices`.
"""

from importlib import import_module as _import
from math import e, inf, nan, pi
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import devices as _folder  # loaded first: importing it later would put the folder in the function's place
from . import errors, nn, optim, training
from ._place.plan import Plan
from ._run.api import LoadedPlan, eval, explain, load_plan, memory_stats, plan, synchronize
from ._run.device import devices
from ._run.profile import profile
from ._tensor import protocols as _protocols
from ._tensor.dtype import (
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._tensor.dtype import bool_ as bool
from ._tensor.files import load, save
from ._tensor.info import API_VERSION as __array_api_version__
from ._tensor.info import __array_namespace_info__
from ._tensor.options import deterministic, options
from ._tensor.spellings import missing as _missing
from ._tensor.tensor import Tensor
from ._tensor.tree import (
    register_tree,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_with_path,
    tree_reduce,
    tree_structure,
    tree_unflatten,
)
from ._trace import debug
from ._trace.along import apply_along_axis, apply_over_axes
from ._trace.checkpoint import checkpoint, stop_gradient
from ._trace.control.branches import cond
from ._trace.control.loops import fori_loop, while_loop
from ._trace.control.scans import scan
from ._trace.custom import custom_vjp
from ._trace.forward import jvp, linearize
from ._trace.grad import grad, value_and_grad, vjp
from ._trace.jacobian import hessian, jacfwd, jacobian, jacrev
from ._trace.jit import jit
from ._trace.shapes import eval_shape
from ._trace.vmap import vmap
from ._tune.calibration import calibrate
from .ops import fft, linalg, random
from .ops.aliases import (
    absolute,
    amax,
    amin,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    around,
    asanyarray,
    ascontiguousarray,
    asfortranarray,
    bitwise_not,
    concatenate,
    conjugate,
    degrees,
    fix,
    invert,
    left_shift,
    mod,
    power,
    radians,
    right_shift,
    rint,
    true_divide,
)
from .ops.choosing import (
    argpartition,
    argwhere,
    choose,
    compress,
    extract,
    flatnonzero,
    lexsort,
    partition,
    piecewise,
    put_along_axis,
    ravel_multi_index,
    select,
    sort_complex,
    topk,
    trim_zeros,
    unravel_index,
)
from .ops.comparing import (
    allclose,
    array_equal,
    array_equiv,
    common_type,
    isclose,
    iscomplexobj,
    isrealobj,
    isscalar,
    issubdtype,
    iterable,
    promote_types,
)
from .ops.counts import (
    bincount,
    digitize,
    histogram,
    histogram2d,
    histogram_bin_edges,
    histogramdd,
)
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
from .ops.joins import (
    append,
    array_split,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block,
    column_stack,
    delete,
    dsplit,
    dstack,
    hsplit,
    hstack,
    indices,
    insert,
    resize,
    split,
    vsplit,
    vstack,
)
from .ops.layout import (
    array,
    copy,
    diag,
    diag_indices,
    diag_indices_from,
    diagflat,
    diagonal,
    fliplr,
    flipud,
    ix_,
    ndim,
    pad,
    ravel,
    rollaxis,
    rot90,
    shape,
    size,
    swapaxes,
    trace,
    transpose,
    tri,
    tril_indices,
    tril_indices_from,
    triu_indices,
    triu_indices_from,
)
from .ops.linalg import matmul, matrix_transpose, tensordot, vecdot
from .ops.nans import (
    nanargmax,
    nanargmin,
    nancumprod,
    nancumsum,
    nanmax,
    nanmean,
    nanmedian,
    nanmin,
    nanpercentile,
    nanprod,
    nanquantile,
    nanstd,
    nansum,
    nanvar,
)
from .ops.numeric import (
    angle,
    bitwise_count,
    cbrt,
    deg2rad,
    divmod,
    exp2,
    fabs,
    float_power,
    fmax,
    fmin,
    fmod,
    frexp,
    gcd,
    heaviside,
    iscomplex,
    isneginf,
    isposinf,
    isreal,
    lcm,
    ldexp,
    logaddexp2,
    modf,
    nan_to_num,
    rad2deg,
    sinc,
    spacing,
)
from .ops.polynomials import (
    poly,
    polyadd,
    polyder,
    polydiv,
    polyfit,
    polyint,
    polymul,
    polysub,
    polyval,
    roots,
    vander,
)
from .ops.ranges import (
    cumprod,
    cumsum,
    frombuffer,
    fromfunction,
    fromiter,
    geomspace,
    identity,
    logspace,
    mask_indices,
)
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
from .ops.sets import (
    intersect1d,
    packbits,
    setdiff1d,
    setxor1d,
    union1d,
    unique,
    unpackbits,
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
from .ops.signal import (
    bartlett,
    blackman,
    convolve,
    correlate,
    ediff1d,
    gradient,
    hamming,
    hanning,
    i0,
    interp,
    kaiser,
    trapezoid,
    unwrap,
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
from .ops.statistics import (
    average,
    corrcoef,
    cov,
    median,
    percentile,
    ptp,
    quantile,
)
from .ops.types import astype, can_cast, finfo, iinfo, isdtype, result_type
from .ops.updates import At as _At
from .ops.vectors import (
    cross,
    dot,
    inner,
    kron,
    matvec,
    outer,
    vdot,
    vecmat,
)

__version__ = "0.1.0"
newaxis = None

if _TYPE_CHECKING:
    from . import distributed as distributed

__all__ = sorted(
    {name for name in globals() if not name.startswith("_") and name not in ("codegen", "ops")} | {"distributed"}
)


def __dir__() -> list[str]:
    return [*__all__, *[name for name in globals() if name.startswith("__")]]


if not _TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> object:
        if name == "distributed":  # loaded when it is first used: most programs are one process
            return _import(".distributed", __name__)
        raise AttributeError(_missing(name), name=name)
