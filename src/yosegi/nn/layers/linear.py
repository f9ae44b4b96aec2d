"""Linear maps, embeddings, and how modules follow each other."""

from __future__ import annotations

from math import sqrt
from typing import Any, final

from ..._tensor.dtype import float32
from ..._tensor.tensor import Tensor
from ...errors import ArgumentError
from ...ops import rules
from ...ops.creation import DTypeLike
from ...ops.index import take
from ...ops.linear import linear
from ...ops.random import generator_of
from ...ops.shape import reshape
from ..init import Rng, normal, uniform
from ..module import Module


def scaled_pair(
    shape: tuple[int, ...], outputs: int, inputs: int, bias: bool, rng: Rng, dtype: DTypeLike
) -> tuple[Tensor, Tensor | None]:
    """PyTorch's initial weight and bias of a layer: evenly distributed up to 1 / sqrt(inputs)."""
    rng = generator_of(rng)
    bound = 1 / sqrt(inputs) if inputs else 0.0
    weight = uniform(shape, -bound, bound, rng=rng, dtype=dtype)
    return weight, uniform((outputs,), -bound, bound, rng=rng, dtype=dtype) if bias else None


@final
class Linear(Module):
    """An affine map of the last axis: x @ weight.T + bias.

    Parameters
    ----------
    in_features : int
        The length of the last axis of the input.
    out_features : int
        The length of the last axis of the output.
    bias : bool
        False: no bias.
    rng : Generator or int, optional
        The generator of the initial values.
    dtype : dtype
        The dtype of the parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.nn.Linear(3, 4)
    >>> layer(ys.ones((2, 3))).shape, layer.weight.shape
    ((2, 4), (4, 3))
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, rng: Rng = None, dtype: DTypeLike = float32
    ) -> None:
        rules.counts("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight, self.bias = scaled_pair((out_features, in_features), out_features, in_features, bias, rng, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Compute x @ weight.T + bias."""
        return linear(x, self.weight, self.bias)


@final
class Embedding(Module):
    """Rows of a table, by integers.

    Parameters
    ----------
    num_embeddings : int
        The number of rows.
    embedding_dim : int
        The length of a row.
    rng : Generator or int, optional
        The generator of the initial values, which are standard normal.
    dtype : dtype
        The dtype of the table.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.Embedding(10, 4)(ys.asarray([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *, rng: Rng = None, dtype: DTypeLike = float32) -> None:
        rules.counts("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.weight = normal((num_embeddings, embedding_dim), rng=rng, dtype=dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """Return the rows of these numbers."""
        return take(self.weight, indices, axis=0)


@final
class Sequential(Module):
    """Modules and functions that are called one after another. Parameters are named by position: "0.weight".

    Parameters
    ----------
    *layers : Module or callable
        The modules, and functions of one tensor.

    Examples
    --------
    >>> import yosegi as ys
    >>> model = ys.nn.Sequential(ys.nn.Linear(2, 8), ys.nn.relu, ys.nn.Linear(8, 1))
    >>> model(ys.ones((5, 2))).shape, len(model)
    ((5, 1), 3)
    """

    def __init__(self, *layers: Any) -> None:
        for n, layer in enumerate(layers):
            if not callable(layer):
                raise ArgumentError(f"[Sequential] expected modules and functions, got {type(layer).__name__} at {n}")
            setattr(self, str(n), layer)

    @property
    def layers(self) -> tuple[Any, ...]:
        """The modules and functions in order."""
        count = sum(name.isdigit() for name in vars(self))
        return tuple(vars(self)[str(n)] for n in range(count))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, n: int) -> Any:
        return self.layers[n]

    def __iter__(self) -> Any:
        return iter(self.layers)

    def forward(self, x: Any) -> Any:
        """Call the layers one after another."""
        for layer in self.layers:
            x = layer(x)
        return x


@final
class Flatten(Module):
    """All axes from the second on as one.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.Flatten()(ys.ones((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of x."""
        return reshape(x, (x.shape[0], -1))


@final
class Identity(Module):
    """The input itself.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.Identity()(ys.asarray([1.0])).tolist()
    [1.0]
    """

    def forward(self, x: Any) -> Any:
        """Return x."""
        return x
