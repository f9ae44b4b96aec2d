"""Distributed programs: the same program in many processes, the ranks."""

from . import lower as _lower  # noqa: F401 (installs propagation and lowering)
from .collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    from_local,
    gather,
    local,
    recv,
    reduce_scatter,
    replicate,
    send,
    shard,
)
from .communicator import Combine, Communicator, RankLost
from .layers import ColumnParallelLinear, RowParallelLinear
from .layout import Layout, Mesh, Partial, Replicate, Shard
from .parallel import data_parallel, sharded_parameters, sharded_state
from .pipeline import pipeline, stage_of
from .runtime import current, init, rank, size
from .survival import survive

__all__ = [
    "ColumnParallelLinear", "Combine", "Communicator", "Layout", "Mesh", "Partial", "RankLost", "Replicate",
    "RowParallelLinear", "Shard", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "current",
    "data_parallel", "from_local", "gather", "init", "local", "pipeline", "rank", "recv", "reduce_scatter", "replicate",
    "send", "shard", "sharded_parameters", "sharded_state", "size", "stage_of", "survive",
]  # fmt: skip
