"""Communication between GPUs: NCCL and shared memory, between ranks that are threads, on the host's memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import yosegi as ys
from distributed_cases import combines, expected, value
from fakes import installed
from fakes.nccl import SYSTEM_ERROR, FakeNCCL
from fakes.shared_gpu import fake_cupy
from yosegi._graph.graph import Graph
from yosegi._schedule.fuse import fuse
from yosegi._tensor.dtype import as_dtype
from yosegi._tensor.node import spec
from yosegi._tensor.op import leaf_call
from yosegi.devices.cuda import nccl, peers
from yosegi.devices.cuda.device import CUDADevice
from yosegi.devices.cuda.nccl import NCCL, Library, NCCLError
from yosegi.devices.cuda.peers import Connection
from yosegi.devices.cuda.shared_memory import SharedMemory
from yosegi.distributed import Combine, Mesh, RankLost, communication, links
from yosegi.distributed.fake import Kill, run_ranks
from yosegi.distributed.layout import bounds
from yosegi.errors import Unsupported

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"), reason="needs a C++ compiler and /dev/shm"
)
FOLDER = Path(tempfile.gettempdir()) / "yosegi-fake-kernels"
DTYPES = [np.dtype(d) for d in ("bool", "int16", "int32", "float16", "float32", "complex64", ml_dtypes.bfloat16)]


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    FOLDER.mkdir(exist_ok=True)
    monkeypatch.setenv("YOSEGI_CALIBRATE", "0")


class Rank:
    """A rank with a GPU."""

    def __init__(self, ranks: Any, library: Library | None) -> None:
        self.runtime = (cupy := fake_cupy(FOLDER)).cuda.runtime
        self.device = CUDADevice(cupy, 0)
        self.ranks = ranks
        self.mesh = Mesh((ranks.size,), ("data",), ranks)
        queue = self.device.queue
        engine: Any = SharedMemory(queue, ranks) if library is None else NCCL(queue, ranks, library)
        self.via = Connection(self.device, engine)

    def __call__(self, op: Any, array: Any, **attrs: Any) -> Any:
        """The result of a communication, the second time: recorded, if it can be."""
        given = spec(array.shape, as_dtype(array.dtype))
        call = op.call((given,), {"mesh": self.mesh, "via": self.via, "why": "", **attrs})
        region = fuse(Graph((leaf_call(given), call), ((), (0,)), (1,)))[0]
        assert self.device.supports(region) is None
        kernel = self.device.compile(region)
        made = [self.device.to_host(kernel(self.device.from_host(array))[0]) for _ in range(4)]
        for each in made:
            assert each.tobytes() == made[0].tobytes()
        assert made[0].shape == call.spec.shape
        return made[0]


@pytest.fixture(params=["NCCL", "shared memory"])
def library(request: pytest.FixtureRequest) -> Library | None:
    return Library(FakeNCCL()) if request.param == "NCCL" else None


def close(got: Any, wanted: Any) -> None:
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    rtol = 1e-2 if wanted.dtype.itemsize == 2 and wanted.dtype.kind != "i" else 1e-5
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_reductions_equal_numpy(library: Library | None, size: int, dtype: Any) -> None:
    def program(ranks: Any) -> None:
        rank = Rank(ranks, library)
        for shape in [(0,), (7,), (6, 5), (9000,)] if dtype == np.float32 else [(7,), (6, 5)]:
            arrays = [np.ascontiguousarray(value(dtype, shape, n)) for n in range(size)]
            for combine in combines(dtype):
                for fixed in (False, True):
                    attrs = {"axis": 0, "combine": combine, "fixed_order": fixed}
                    whole = expected(arrays, combine)
                    close(rank(communication.all_reduce, arrays[ranks.rank], **attrs), whole)
                    for dim in range(len(shape)):
                        part = np.array_split(whole, size, dim)[ranks.rank]
                        close(rank(communication.reduce_scatter, arrays[ranks.rank], **attrs, dim=dim), part)
        rank.runtime.close()

    run_ranks(size, program)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_equal_numpy(library: Library | None, size: int) -> None:
    def program(ranks: Any) -> None:
        rank, own = Rank(ranks, library), ranks.rank
        for dtype in (np.dtype(np.float32), np.dtype(np.int8)):
            for shape in [(0,), (1,), (7,), (5, 4), (4, 0), (3, 5, 2)]:
                array = np.ascontiguousarray(value(dtype, shape, 0))
                for root in range(size):
                    rooted = np.ascontiguousarray(value(dtype, shape, own))
                    got = rank(communication.broadcast, rooted, root=root)
                    np.testing.assert_array_equal(got, value(dtype, shape, root))
                for dim in range(len(shape)):
                    part = np.ascontiguousarray(np.array_split(array, size, dim)[own])
                    attrs = {"axis": 0, "dim": dim, "length": shape[dim]}
                    np.testing.assert_array_equal(rank(communication.all_gather, part, **attrs), array)
                    for to in set(range(len(shape))) - {dim}:
                        got = rank(communication.all_to_all, part, **attrs, to=to)
                        first, length = bounds(shape[to], size, own)
                        wanted = np.take(array, range(first, first + length), to)
                        np.testing.assert_array_equal(got, wanted)
        rank.runtime.close()

    run_ranks(size, program)


def test_a_value_larger_than_the_buffer_makes_it_grow() -> None:
    def program(ranks: Any) -> None:
        rank = Rank(ranks, None)
        array = np.arange(3 << 20, dtype=np.float32) + ranks.rank
        attrs = {"axis": 0, "combine": Combine.SUM, "fixed_order": False}
        got = rank(communication.all_reduce, array, **attrs)
        np.testing.assert_array_equal(got, 2 * np.arange(3 << 20, dtype=np.float32) + 1)
        rank.runtime.close()

    run_ranks(2, program)


def test_sums_of_halves_and_extremes_are_not_left_to_nccl() -> None:
    library = FakeNCCL()

    def program(ranks: Any) -> None:
        rank = Rank(ranks, Library(library))
        for dtype, combine, fixed in [
            ("float16", Combine.SUM, False), ("float32", Combine.MAX, False), ("float32", Combine.SUM, True),
            ("int16", Combine.SUM, False),
        ]:  # fmt: skip
            rank(communication.all_reduce, np.ones(4, dtype), axis=0, combine=combine, fixed_order=fixed)

    run_ranks(3, program)
    assert "ncclSend" in library.told
    assert "ncclAllReduce" not in library.told


# Which engine is used


class Cupys:
    """GPUs of the ranks of a test, which may share memory, or be one and the same."""

    def __init__(self, *, shares: bool, buses: list[str]) -> None:
        self.shares, self.buses = shares, buses

    def device(self, rank: int) -> CUDADevice:
        cupy = fake_cupy(FOLDER, shares=self.shares)
        cupy.cuda.runtime.deviceGetPCIBusId = lambda number: self.buses[rank]
        return CUDADevice(cupy, 0)


@pytest.fixture
def with_nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNCCL:
    fake = FakeNCCL()
    made = Library(fake)
    for module in (nccl, peers):
        monkeypatch.setattr(module, "library", lambda: made)
    return fake


def engines(cupys: Cupys) -> list[str]:
    def program(ranks: Any) -> str:
        device = cupys.device(ranks.rank)
        try:
            return str(device.connected(ranks))
        except Unsupported as failure:
            return str(failure)
        finally:
            device.queue.runtime.close()

    return [str(each) for each in run_ranks(2, program)]


def test_a_gpu_for_each_rank_is_for_nccl(with_nccl: FakeNCCL) -> None:
    assert engines(Cupys(shares=True, buses=["a", "b"])) == ["NCCL 2.28.3 on cuda:0"] * 2


def test_ranks_on_one_gpu_share_memory(with_nccl: FakeNCCL) -> None:
    assert engines(Cupys(shares=True, buses=["a", "a"])) == ["CUDA IPC on cuda:0"] * 2


def test_reasons_are_those_of_all_ranks(with_nccl: FakeNCCL) -> None:
    said = engines(Cupys(shares=False, buses=["a", "a"]))
    shared = "LaunchFailure: rank 0 cannot share its memory: status 801"
    assert said == [f"no NCCL: several ranks share a GPU; no CUDA IPC: rank 0: {shared}"] * 2


def test_a_library_that_does_not_work_is_a_reason(with_nccl: FakeNCCL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_nccl, "_commInitRank", lambda *given: SYSTEM_ERROR)
    assert engines(Cupys(shares=True, buses=["a", "b"])) == ["CUDA IPC on cuda:0"] * 2


def test_no_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_FILE", "libnccl.so.of-nobody")
    nccl.library.cache_clear()
    with pytest.raises(Unsupported, match="NCCL is not there"):
        nccl.library()
    nccl.library.cache_clear()


def test_bytes_that_do_not_arrive_are_a_reason(with_nccl: FakeNCCL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_nccl, "put", lambda work: None)
    assert engines(Cupys(shares=True, buses=["a", "b"])) == ["CUDA IPC on cuda:0"] * 2


def test_values_go_through_the_host_without_an_engine(with_nccl: FakeNCCL) -> None:
    cupy = fake_cupy(FOLDER, shares=False)
    cupy.cuda.runtime.deviceGetPCIBusId = lambda number: "a"
    device = CUDADevice(cupy, 0)

    def program(ranks: Any) -> tuple[str, list[float]]:
        with ys.options(device="cuda:0"):
            mesh = ys.distributed.Mesh((2,), ("data",))
            whole = ys.distributed.gather(ys.distributed.shard(np.arange(4.0), mesh, data=0) * 2)
            text = str(ys.explain(whole))
            return text, whole.tolist()

    with installed(device, alone=True):
        for made in run_ranks(2, program):
            assert made is not None
            assert "through the host: no NCCL: several ranks share a GPU; no CUDA IPC: rank 0:" in made[0]
            assert made[1] == [0.0, 2.0, 4.0, 6.0]


# Survival


def test_a_rank_that_is_missing_in_nccl_is_named(with_nccl: FakeNCCL) -> None:
    """The stream of rank 0 is never done: it waits for rank 1, which is dead."""
    lost: list[RankLost] = []

    def program(ranks: Any) -> None:
        cupy = fake_cupy(FOLDER)
        device = CUDADevice(cupy, 0)
        NCCL(device.queue, ranks)
        ranks.barrier()  # where rank 1 ends
        cupy.cuda.runtime.streamQuery = lambda stream: 600
        data = device.from_host(np.ones(4, np.float32))
        try:
            device.to_host(data)
        except RankLost as error:
            lost.append(error)

    run_ranks(2, program, deadline=0.5, faults=[Kill(1, 2)])
    assert [error.ranks for error in lost] == [(1,)]
    assert "ncclCommAbort" in with_nccl.told


def test_an_error_of_nccl_ends_a_wait(with_nccl: FakeNCCL) -> None:
    said: list[str] = []

    def program(ranks: Any) -> None:
        cupy = fake_cupy(FOLDER)
        device = CUDADevice(cupy, 0)
        NCCL(device.queue, ranks)
        ranks.barrier()
        with_nccl.status = SYSTEM_ERROR
        cupy.cuda.runtime.streamQuery = lambda stream: 600
        try:
            device.synchronize()
        except RankLost as error:
            said.append(str(error))

    run_ranks(2, program)
    assert said == ["[NCCL] expected an end within 30 s, got none, though all ranks are there"] * 2


def test_a_rank_that_does_not_join_is_named(with_nccl: FakeNCCL) -> None:
    lost: list[RankLost] = []

    def program(ranks: Any) -> None:
        device = CUDADevice(fake_cupy(FOLDER), 0)
        try:
            if ranks.rank == 0:
                NCCL(device.queue, ranks)
            else:
                ranks.all_gather(np.zeros(128, np.uint8))
        except (RankLost, NCCLError) as error:
            lost.append(error)  # type: ignore[arg-type]

    run_ranks(2, program, deadline=0.5)
    assert [error.ranks for error in lost] == [(1,)]


def test_a_rank_that_is_missing_in_shared_memory_is_named() -> None:
    lost: list[RankLost] = []

    def program(ranks: Any) -> None:
        rank = Rank(ranks, None)
        if ranks.rank == 2:
            return
        try:
            rank(communication.all_reduce, np.ones(4, np.float32), axis=0, combine=Combine.SUM, fixed_order=False)
        except RankLost as error:
            lost.append(error)
        finally:
            rank.runtime.close()

    run_ranks(3, program, deadline=2.0)
    assert lost
    assert {error.ranks for error in lost} == {(2,)}
    assert all("[all_reduce]" in str(error) for error in lost)


def test_a_step_with_an_exchange_is_one_launch(with_nccl: FakeNCCL) -> None:
    cupy = fake_cupy(FOLDER)
    with_nccl.put = cupy.cuda.runtime.put
    with installed(CUDADevice(cupy, 0), alone=True), ys.options(device="cuda:0"):
        mesh = ys.distributed.Mesh((1,), ("data",))
        via = links.connect(mesh.groups[0]).connection
        attrs = {"mesh": mesh, "axis": 0, "combine": Combine.SUM, "fixed_order": False, "via": via, "why": ""}
        run = ys.jit(lambda x: (communication.all_reduce(x * 2, **attrs) + 1, x - 1))
        x = ys.asarray(np.ones(8, np.float32)).to_device("cuda:0")
        for _ in range(8):
            made, other = run(x)
        told = with_nccl.told.count("ncclAllReduce")
        made, other = run(x)
        assert run.plans[-1].steps[0].launched.startswith("one launch of")
        assert with_nccl.told.count("ncclAllReduce") == told, "a replay calls nothing"
        assert made.tolist() == [3.0] * 8
        assert other.tolist() == [0.0] * 8
