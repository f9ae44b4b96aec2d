"""Modules: trees of parameters, immutable, named as PyTorch names them, with explicit state."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import yosegi as ys
from yosegi import nn
from yosegi.errors import ArgumentError, ShapeError


class Block(nn.Module):
    def __init__(self, rng):
        self.fc = nn.Linear(3, 8, rng=rng)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5, rng=rng)

    def forward(self, x):
        return self.drop(self.drop(nn.relu(self.norm(self.fc(x)))))


class Model(nn.Module):
    def __init__(self, scale=2.0):
        rng = ys.random.default_rng(0)
        self.blocks = [Block(rng)]
        self.head = nn.Sequential(nn.Linear(8, 2, rng=rng), nn.relu)
        self.scale = scale

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def batch(rows=5):
    return ys.asarray(np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32))


def loss(model, x):
    return ys.mean((model(x) - 1) ** 2)


def equal(a, b):
    pairs = zip(ys.tree_leaves(a), ys.tree_leaves(b), strict=True)
    return ys.tree_structure(a) == ys.tree_structure(b) and all(np.array_equal(x.numpy(), y.numpy()) for x, y in pairs)


def test_parameters_have_pytorchs_names():
    assert [name for name, _ in Model().named_parameters()] == [
        "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.0.norm.weight", "blocks.0.norm.bias", "head.0.weight",
        "head.0.bias",
    ]  # fmt: skip
    assert set(Model().state_dict()) - {name for name, _ in Model().named_parameters()} == {
        "blocks.0.norm.running_mean", "blocks.0.norm.running_var", "blocks.0.norm.num_batches_tracked",
    }  # fmt: skip
    assert [name for name, _ in Model().named_modules()] == [
        "", "blocks.0", "blocks.0.fc", "blocks.0.norm", "blocks.0.drop", "head", "head.0",
    ]  # fmt: skip
    assert sum(p.size for p in Model().parameters()) == 66


def test_repr_is_a_tree_with_counts():
    assert repr(Model()) == "\n".join([
        "Model(scale=2.0) [66 parameters]",
        "  blocks.0: Block() [48 parameters]",
        "    fc: Linear(in_features=3, out_features=8) [32 parameters]",
        "    norm: BatchNorm1d(num_features=8, eps=1e-05, momentum=0.1) [16 parameters]",
        "    drop: Dropout(p=0.5)",
        "  head: Sequential(1=relu) [18 parameters]",
        "    0: Linear(in_features=8, out_features=2) [18 parameters]",
    ])  # fmt: skip


def test_a_module_is_immutable():
    model = Model()
    with pytest.raises(ArgumentError, match=r"\[Model\] .* got a new value of scale; .*replace\(scale="):
        model.scale = 3.0
    with pytest.raises(ArgumentError, match="got del of scale"):
        del model.scale
    with pytest.raises(ArgumentError, match=r"\[replace\] expected attributes of Model, got size"):
        model.replace(size=3)
    assert model.replace(scale=3.0).scale == 3.0
    assert model.scale == 2.0


def test_settings_are_hashable():
    class Wrong(nn.Module):
        def __init__(self):
            self.sizes = [1, 2]

    with pytest.raises(ArgumentError, match=r"\[Wrong\] .* got list for sizes; make it a tuple"):
        Wrong()


def test_train_and_eval_are_copies():
    model = Model()
    quiet = model.eval()
    assert not any(module.training for _, module in quiet.named_modules())
    assert all(module.training for _, module in model.named_modules())
    assert equal(quiet.train(), model)
    assert ys.tree_structure(quiet) != ys.tree_structure(model)


def test_state_dict_goes_to_another_model_whole():
    first, second = Model(), ys.tree_map(lambda t: t * 0, Model())
    assert equal(second.load_state_dict(first.state_dict()).state_dict(), first.state_dict())
    values = {name: value.numpy() for name, value in first.state_dict().items()}
    values["more"] = values.pop("head.0.bias")
    values["blocks.0.fc.weight"] = np.ones((8, 4))
    with pytest.raises(ArgumentError) as caught:
        first.load_state_dict(values)
    assert str(caught.value) == "\n  ".join([
        "[load_state_dict] expected the names and shapes of Model, got 3 differences:",
        "head.0.bias of shape (2,) is missing",
        "more of shape (2,) is unknown",
        "blocks.0.fc.weight is of shape (8, 4), expected (8, 3)",
    ])  # fmt: skip


def test_a_module_survives_pickle():
    model = Block(None)
    assert equal(pickle.loads(pickle.dumps(model)), model)


def test_gradients_have_the_structure_of_the_parameters():
    model = Model()
    (value, _), grads = nn.value_and_grad(model, loss, has_state=True)(batch())
    params, rest = nn.partition(model)
    assert value.shape == ()
    assert isinstance(grads, Model)
    assert ys.tree_structure(grads) == ys.tree_structure(params)
    assert grads.blocks[0].norm.running_mean is None
    assert equal(nn.combine(params, rest), model)
    x, step = batch(), 1e-3
    weight = model.head[0].weight.numpy()
    shift = np.zeros_like(weight)
    shift[0, 1] = step

    def moved(sign):
        head = nn.Sequential(model.head[0].replace(weight=ys.asarray(weight + sign * shift)), nn.relu)
        return float(nn.stateful(model.replace(head=head), loss)(x)[0])

    assert (moved(1) - moved(-1)) / (2 * step) == pytest.approx(float(grads.head[0].weight[0, 1]), rel=1e-2)


def test_aux_is_passed_through():
    def both(model, x):
        return loss(model, x), {"count": x.shape[0]}

    (value, aux), grads = nn.value_and_grad(Model().eval(), both, has_aux=True)(batch())
    assert (value.shape, aux) == ((), {"count": 5})
    ((value, aux), model), grads = nn.value_and_grad(Model(), both, has_aux=True, has_state=True)(batch())
    assert (value.shape, aux, int(model.blocks[0].norm.num_batches_tracked)) == ((), {"count": 5}, 1)
    assert grads.head[0].bias.shape == (2,)


def test_jit_repeats_the_steps_of_plain_calls():
    """State, draws and gradients of five jitted steps are those of five plain ones, in one trace."""

    def step(model, x):
        (value, model), grads = nn.value_and_grad(model, loss, has_state=True)(x)
        params, rest = nn.partition(model)
        return nn.combine(ys.tree_map(lambda p, g: p - 0.1 * g, params, grads), rest), value

    jitted = ys.jit(step)
    plain = fast = Model()
    for _ in range(5):
        plain, expected = step(plain, batch())
        fast, value = jitted(fast, batch())
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
    assert len(jitted.plans) == 1
    assert fast.blocks[0].drop.generator.tolist() == plain.blocks[0].drop.generator.tolist()
    assert fast.blocks[0].drop.generator.tolist()[2:] == [10, 0]
    np.testing.assert_allclose(fast.blocks[0].norm.running_var.numpy(), plain.blocks[0].norm.running_var.numpy(), 1e-5)
    assert int(fast.blocks[0].norm.num_batches_tracked) == 5


def test_jit_of_a_module_is_never_stale():
    model, x = Model().eval(), batch()
    f = ys.jit(lambda m, x: m(x))
    for m in (model, model.replace(scale=3.0), model, model.replace(head=nn.Sequential(*model.head, nn.Identity()))):
        np.testing.assert_allclose(f(m, x).numpy(), m(x).numpy(), 1e-5)
    assert len(f.plans) == 3
    assert float(ys.sum(f(ys.tree_map(lambda t: t * 0, model), x))) == 0
    whole, method = ys.jit(model), ys.jit(model.forward)
    np.testing.assert_allclose(whole(x).numpy(), model(x).numpy(), 1e-5)
    np.testing.assert_allclose(method(x).numpy(), model(x).numpy(), 1e-5)


def test_jit_takes_the_weights_of_a_layer_as_inputs():
    layer = nn.Linear(3, 2)
    f = ys.jit(layer)
    assert f(batch()).shape == (5, 2)
    assert len(f.plans[0].graph.inputs) == 3


def test_a_shared_layer_draws_anew_at_every_call():
    drop = nn.Dropout(0.5, rng=0)
    (first, second), after = nn.stateful(drop, lambda m, x: (m(x), m(x)))(ys.ones((64,)))
    assert first.tolist() != second.tolist()
    again, _ = nn.stateful(drop)(ys.ones((64,)))
    assert again.tolist() == first.tolist()
    assert after.generator.tolist()[2] == 2


def test_vmap_and_scan_take_modules():
    layer, x = nn.Linear(3, 3, rng=0), batch()
    np.testing.assert_allclose(
        ys.vmap(lambda m, x: m(x), in_axes=(None, 0))(layer, x).numpy(), layer(x).numpy(), rtol=1e-5
    )
    stack = ys.tree_map(lambda a, b: ys.stack([a, b]), layer, layer)
    y, _ = ys.scan(lambda x, m: (m(x), ys.sum(x)), x, stack)
    np.testing.assert_allclose(y.numpy(), layer(layer(x)).numpy(), rtol=1e-5)


def test_second_order_gradients_of_a_network():
    model = nn.Sequential(nn.Linear(3, 4, rng=0), ys.tanh, nn.Linear(4, 1, bias=False, rng=1))
    x = batch()

    def squared_slope(model, x):
        return ys.sum(ys.grad(lambda x: ys.sum(model(x)))(x) ** 2)

    _, grads = nn.value_and_grad(model, squared_slope)(x)
    weight, step = model[0].weight.numpy().astype(np.float64), 1e-4
    wide = ys.tree_map(lambda t: t.astype(ys.float64), model)
    shift = np.zeros_like(weight)
    shift[1, 2] = step

    def moved(sign):
        first = wide[0].replace(weight=ys.asarray(weight + sign * shift))
        return float(squared_slope(nn.Sequential(first, *list(wide)[1:]), x.astype(ys.float64)))

    assert (moved(1) - moved(-1)) / (2 * step) == pytest.approx(float(grads[0].weight[1, 2]), rel=1e-3)


# Mistakes


def test_a_batch_of_another_shape_names_the_module():
    with pytest.raises(ShapeError, match=r"^\[linear\] expected w of shape .* \(in Model\.blocks\.0\.fc\)$"):
        Model().eval()(batch()[:, :2])
    with pytest.raises(ShapeError, match=r"\(in Model\.blocks\.0\.fc\)$"):
        ys.jit(lambda m, x: m(x))(Model().eval(), batch()[:, :2])
    with pytest.raises(ShapeError, match=r"\(in Linear\)$"):
        nn.Linear(3, 2)(ys.ones((5, 2)))


def test_a_training_call_without_state_names_the_module():
    with pytest.raises(
        ArgumentError, match=r"^\[BatchNorm1d\] .*use ys\.nn\.stateful.* \(in Model\.blocks\.0\.norm\)$"
    ):
        Model()(batch())
    with pytest.raises(ArgumentError, match=r"\(in Model\.blocks\.0\.norm\)$"):
        nn.value_and_grad(Model(), loss)(batch())


def test_state_of_a_module_outside_of_the_model_is_refused():
    other = nn.Dropout(0.5)
    with pytest.raises(
        ArgumentError, match=r"\[stateful\] expected state of modules in Linear, got generator of others"
    ):
        nn.stateful(nn.Linear(3, 2), lambda m, x: other(m(x)))(batch())


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(
        ShapeError, match=r"\[value_and_grad\] expected the loss of Model to be a real .* float32\[5, 2\]"
    ):
        nn.value_and_grad(Model().eval(), lambda m, x: m(x))(batch())


def test_a_parameter_without_a_gradient_is_named():
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(3, 1))
    with pytest.warns(
        UserWarning, match=r"the loss of Sequential does not depend on 1\.weight, 1\.bias: the gradient is"
    ):
        _, grads = nn.value_and_grad(model, lambda m, x: ys.sum(m[0](x)))(batch())
    assert grads[1].bias.tolist() == [0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.value_and_grad(model[0], loss)(batch())


def test_a_module_without_forward_says_so():
    class Empty(nn.Module):
        pass

    with pytest.raises(ArgumentError, match=r"\[Empty\] expected a class with a method forward"):
        Empty()(1)


# Summary


def test_a_summary_computes_nothing():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 100_000))
    found = nn.summary(model, ys.zeros((1_000_000, 3), dtype=ys.float32))
    assert [(r.path, r.kind, r.parameters) for r in found.rows] == [
        ("", "Sequential", 500_024), ("0", "Linear", 16), ("1", "BatchNorm1d", 8), ("2", "Dropout", 0),
        ("3", "Linear", 500_000),
    ]  # fmt: skip
    assert [o.shape for r in found.rows for o in r.outputs] == [
        (1_000_000, 100_000), *[(1_000_000, 4)] * 3, (1_000_000, 100_000),
    ]  # fmt: skip
    assert (found.parameters, found.nbytes) == (500_024, 2_000_096)
    assert model[3].weight._node.buffer is None
