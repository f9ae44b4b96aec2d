"""Training over ranks: the losses are those of one process, data, tensor and pipeline parallel."""

from functools import partial

import numpy as np
import pytest
from parallel_example import check

import yosegi as ys
from yosegi import distributed as dist
from yosegi import nn
from yosegi._tensor.op import OpKind
from yosegi.distributed import lower, sequence
from yosegi.distributed.fake import run_ranks
from yosegi.distributed.pipeline import Pass, one_forward_one_backward

WIDTH, HEADS, LENGTH, LETTERS = 32, 4, 12, 40
RATE = 3e-3


class Block(nn.Module):
    """The block of examples/train_char_transformer.py. `column` and `row` make its linear maps."""

    def __init__(self, rng, column, row):
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = column(WIDTH, 3 * WIDTH, rng=rng), row(WIDTH, WIDTH, rng=rng)
        self.up, self.down = column(WIDTH, 4 * WIDTH, rng=rng), row(4 * WIDTH, WIDTH, rng=rng)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = ys.reshape(self.qkv(self.norm1(x)), (batch, length, HEADS, 3, WIDTH // HEADS))
        q, k, v = ys.unstack(ys.permute_dims(parts, (3, 0, 2, 1, 4)))
        seen = ys.permute_dims(nn.scaled_dot_product_attention(q, k, v, is_causal=True), (0, 2, 1, 3))
        x = x + self.out(ys.reshape(seen, (batch, length, WIDTH)))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


def transformer(column=nn.Linear, row=nn.Linear):
    rng = ys.random.default_rng(0)
    embedding = nn.Embedding(LETTERS, WIDTH, rng=rng)
    blocks = [Block(rng, column, row) for _ in range(2)]
    return nn.Sequential(embedding, *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS, rng=rng))


def loss(scores, following):
    return nn.cross_entropy(scores, following, axis=-1)


def batches(count=3, size=8):
    rng = np.random.default_rng(1)
    return [tuple(rng.integers(LETTERS, size=(2, size, LENGTH)).astype(np.int32)) for _ in range(count)]


def step(optimizer, codes, following):
    value, grads = optimizer.value_and_grad(lambda m, x, y: loss(m(x), y))(codes, following)
    return optimizer.step(grads), value


def losses(train, optimizer, given):
    made = []
    for batch in given:
        optimizer, value = train(optimizer, *batch)
        made.append(float(value))
    return made


def messages(train):
    """The communications of a jitted function, whether it waits for them at once or later."""
    names = [c.op.name.removesuffix("_start") for c in train.plans[0].graph.calls if c.op.kind is OpKind.DISTRIBUTED]
    return [name for name in names if name != "wait"]


@pytest.fixture(scope="module")
def alone():
    """The losses of one process."""
    return losses(ys.jit(step), ys.optim.AdamW(transformer(), lr=RATE), batches())


@pytest.mark.parametrize("size", [1, 2, 4])
def test_data_parallel_losses_are_those_of_one_process(alone, size):
    def run(ranks):
        return losses(dist.data_parallel(step), ys.optim.AdamW(transformer(), lr=RATE), batches())

    for found in run_ranks(size, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)


def test_data_parallel_takes_an_uneven_batch():
    given = batches(2, size=5)
    expected = losses(ys.jit(step), ys.optim.AdamW(transformer(), lr=RATE), given)

    def run(ranks):
        return losses(dist.data_parallel(step), ys.optim.AdamW(transformer(), lr=RATE), given)

    for found in run_ranks(2, run, deadline=120):
        assert found == pytest.approx(expected, rel=2e-6)


def test_deterministic_data_parallel_losses_have_the_same_bits():
    def run(ranks):
        with ys.deterministic():
            return losses(dist.data_parallel(step), ys.optim.AdamW(transformer(), lr=RATE), batches())

    first, second = run_ranks(2, run, deadline=120), run_ranks(2, run, deadline=120)
    assert first == second
    assert first[0] == first[1]


def test_data_parallel_sends_the_gradients_in_few_messages():
    def run(ranks):
        train = dist.data_parallel(step)
        losses(train, ys.optim.AdamW(transformer(), lr=RATE), batches(1))
        return messages(train)

    for sent in run_ranks(2, run, deadline=120):
        assert set(sent) == {"all_reduce"}
        assert len(sent) <= 3


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sharded_state_has_the_losses_of_one_process(alone, size):
    def run(ranks):
        train = dist.data_parallel(step)
        optimizer = ys.optim.Chain(transformer(), dist.sharded_state(ys.optim.adamw(RATE)))
        found = losses(train, optimizer, batches())
        sent = set(messages(train))
        held = sum(dist.local(s).size for s in ys.tree_leaves(optimizer.state))
        return found, sent, held

    whole = sum(s.size for s in ys.tree_leaves(ys.optim.Chain(transformer(), ys.optim.adamw(RATE)).state))
    for found, sent, held in run_ranks(size, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)
        assert held <= whole / size * 1.05 + 8
        assert sent == (set() if size == 1 else {"all_reduce", "reduce_scatter", "all_gather"})


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sharded_parameters_have_the_losses_of_one_process(alone, size):
    def run(ranks):
        train = dist.data_parallel(step)
        optimizer = ys.optim.AdamW(dist.sharded_parameters(transformer()), lr=RATE)
        found = losses(train, optimizer, batches())
        made, _ = train(optimizer, *batches(1)[0])
        before, after = [[p.layout for p in ys.tree_leaves(o.params)] for o in (optimizer, made)]
        held = sum(dist.local(s).size for s in ys.tree_leaves((made.params, made.state)))
        return found, set(messages(train)), held, before == after, len(train.plans)

    optimizer = ys.optim.AdamW(transformer(), lr=RATE)
    whole = sum(s.size for s in ys.tree_leaves((optimizer.params, optimizer.state)))
    for found, sent, held, is_kept, plans in run_ranks(size, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)
        assert sent == (set() if size == 1 else {"all_reduce", "reduce_scatter", "all_gather"})
        assert held <= whole / size * 1.02 + 8
        assert is_kept
        assert plans == 1


def kept(x):
    """The bytes of the memory that a tensor keeps."""
    array = x._node.buffer.data
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_do_not_keep_the_memory_of_the_whole_value(size):
    def run(ranks):
        model = dist.sharded_parameters(transformer())
        optimizer = ys.optim.Chain(transformer(), dist.sharded_state(ys.optim.adamw(RATE)))
        parts = [x for x in ys.tree_leaves((model, optimizer.state)) if x.layout is not None]
        ys.eval(*parts)
        return sum(map(kept, parts)), sum(x.nbytes for x in parts)

    for own, whole in run_ranks(size, run, deadline=120):
        assert own <= whole / size * 1.05 + 64


def test_sharded_parameters_are_clipped_by_the_norm_of_all(alone):
    rule = ys.optim.chain(ys.optim.clip_by_norm(0.01), ys.optim.adamw(RATE))
    expected = losses(ys.jit(step), ys.optim.Chain(transformer(), rule), batches())

    def run(ranks):
        parameters = dist.sharded_parameters(transformer())
        return losses(dist.data_parallel(step), ys.optim.Chain(parameters, rule), batches())

    for found in run_ranks(2, run, deadline=120):
        assert found == pytest.approx(expected, rel=2e-6)


def test_sharded_parameters_may_be_parts_of_another_axis(alone):
    def run(ranks):
        mesh = dist.Mesh((2, 2), ("data", "model"))
        column, row = partial(dist.ColumnParallelLinear, mesh=mesh), partial(dist.RowParallelLinear, mesh=mesh)
        model = dist.sharded_parameters(transformer(column, row), mesh)
        found = losses(dist.data_parallel(step, mesh), ys.optim.AdamW(model, lr=RATE), batches())
        return found, dist.local(model[1].up.weight).shape

    for found, shape in run_ranks(4, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)
        assert shape == (4 * WIDTH // 2, WIDTH // 2)


def test_few_gathered_parameters_are_there_at_once(monkeypatch):
    for module in (sequence, lower):
        monkeypatch.setattr(module, "bucket_size", lambda mesh, axis: 0)

    def run(ranks):
        train = dist.data_parallel(step)
        losses(train, ys.optim.AdamW(dist.sharded_parameters(transformer()), lr=RATE), batches(1))
        graph = train.plans[0].graph
        last = {a: entry for entry, args in enumerate(graph.args) for a in args}
        there = [0] * len(graph.calls)
        for begin, call in enumerate(graph.calls):
            if call.op.name.startswith("all_gather"):
                value = begin + call.op.name.endswith("_start")  # the wait stands behind it
                for n in range(begin, last[value] + 1):
                    there[n] += graph.calls[value].spec.nbytes
        return max(there)

    whole = sum(p.nbytes for p in ys.tree_leaves(transformer()))
    for most in run_ranks(2, run, deadline=120):
        assert most < 0.4 * whole, most / whole


@pytest.mark.parametrize("size", [1, 2, 4])
def test_tensor_parallel_losses_are_those_of_one_process(alone, size):
    def run(ranks):
        mesh = dist.Mesh((size,), ("model",))
        column, row = partial(dist.ColumnParallelLinear, mesh=mesh), partial(dist.RowParallelLinear, mesh=mesh)
        model = transformer(column, row)
        train = ys.jit(step)
        found = losses(train, ys.optim.AdamW(model, lr=RATE), batches())
        sent = set(messages(train))
        return found, sent, dist.local(model[1].up.weight).shape

    for found, sent, shape in run_ranks(size, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)
        assert shape == (4 * WIDTH // size, WIDTH)
        assert sent <= {"all_reduce"}


def test_the_norm_of_gradients_is_that_of_all_parts():
    def run(ranks):
        mesh = dist.Mesh((2,), ("model",))
        parts = {"a": dist.shard(ys.asarray([3.0, 0.0]), mesh, model=0), "b": ys.asarray([4.0])}
        return float(ys.optim.global_norm(parts))

    assert run_ranks(2, run) == [5.0, 5.0]


@pytest.mark.filterwarnings("ignore:.*a gradient overflowed:RuntimeWarning")
def test_ranks_skip_an_overflow_together():
    rule = ys.optim.scale_loss(ys.optim.sgd(1.0))

    def run(ranks):
        mesh = dist.Mesh((2,), ("model",))
        parts = {"a": dist.shard(ys.asarray([3.0, 0.0]), mesh, model=0), "b": ys.asarray([4.0])}
        state = rule.init(parts)
        for last in (float("inf"), 5.0):
            grads = {"a": dist.shard(ys.asarray([1.0, last]), mesh, model=0), "b": ys.asarray([1.0])}
            updates, state = rule.update(grads, state, parts)
            parts = ys.optim.apply_updates(parts, updates)
        return int(state["skipped"]), dist.local(parts["a"]).tolist(), parts["b"].tolist()

    assert run_ranks(2, run) == [(1, [2.0], [3.0]), (1, [-5.0], [3.0])]


def test_data_and_tensor_parallel_together(alone):
    def run(ranks):
        mesh = dist.Mesh((2, 2), ("data", "model"))
        column, row = partial(dist.ColumnParallelLinear, mesh=mesh), partial(dist.RowParallelLinear, mesh=mesh)
        optimizer = ys.optim.AdamW(transformer(column, row), lr=RATE)
        return losses(dist.data_parallel(step, mesh), optimizer, batches())

    for found in run_ranks(4, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_pipeline_losses_are_those_of_one_process(alone, size, microbatches):
    def run(ranks):
        mesh = dist.Mesh((size,), ("stage",))
        value_and_grad = dist.pipeline(loss, mesh, microbatches=microbatches)

        def train(optimizer, codes, following):
            value, grads = value_and_grad(optimizer.params, codes, following)
            return optimizer.step(grads), value

        return losses(train, ys.optim.AdamW(dist.stage_of(transformer(), mesh), lr=RATE), batches())

    for found in run_ranks(size, run, deadline=120):
        assert found == pytest.approx(alone, rel=2e-6)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 7])
def test_a_stage_keeps_few_activations(stages, microbatches):
    for stage in range(stages):
        passes = list(one_forward_one_backward(stage, stages, microbatches))
        kept, most = 0, 0
        for direction, _ in passes:
            kept += 1 if direction is Pass.FORWARD else -1
            most = max(most, kept)
        assert most <= stages - stage
        for direction in Pass:
            assert [n for d, n in passes if d is direction] == list(range(microbatches))
        for n in range(microbatches):
            assert passes.index((Pass.FORWARD, n)) < passes.index((Pass.BACKWARD, n))


def test_every_stage_has_a_layer():
    def run(ranks):
        mesh = dist.Mesh((4,), ("stage",))
        return [type(layer).__name__ for layer in dist.stage_of(transformer(), mesh)]

    stages = run_ranks(4, run)
    assert all(stages)
    assert [name for stage in stages for name in stage] == ["Embedding", "Block", "Block", "LayerNorm", "Linear"]


def test_too_few_layers_for_the_ranks():
    def run(ranks):
        dist.stage_of(nn.Sequential(nn.relu), dist.Mesh((2,), ("stage",)))

    with pytest.raises(ys.errors.ArgumentError, match=r"\[stage_of\] expected at least a layer for each of 2 ranks"):
        run_ranks(2, run)


@pytest.mark.parametrize("way", ["data", "sharded", "tensor", "pipeline"])
def test_the_transformer_example_trains_on_processes(way):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'yosegi[mpi]'")
    check([("data", 1), (way, 2), *[(way, 2)] * (way == "data"), *[(way, 4)] * (way == "pipeline")], steps=5)
