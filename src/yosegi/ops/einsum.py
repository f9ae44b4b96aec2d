"""Sums of products by named indices, in NumPy's notation."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from .._tensor.batch import Flags, applied
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, op
from .._tensor.role import Contraction
from .._tensor.tensor import Operand, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import eye, ones
from .elementwise import conj


def _terms(subscripts: str, operands: Sequence[Spec]) -> tuple[list[str], str | None]:
    """The labels of each operand, an ellipsis among them as "." for now, and those of the output if there are any."""
    text = subscripts.replace(" ", "").replace("...", ".")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    for term in (*terms, right):
        strange = [c for c in term if c not in ascii_letters and c != "."]
        if strange or term.count(".") > 1:
            raise ArgumentError(
                f"expected letters, at most one ellipsis an operand, commas and an arrow, got {subscripts!r}"
            )
    if len(terms) != len(operands):
        raise ArgumentError(f"expected {len(terms)} operands for {subscripts!r}, got {len(operands)}")
    return terms, right if arrow else None


def _without_ellipsis(subscripts: str, operands: Sequence[Spec]) -> tuple[list[str], str]:
    """The labels of operands and output, with letters of its own for each dimension that an ellipsis stands for."""
    terms, output = _terms(subscripts, operands)
    free = [c for c in ascii_letters if c not in subscripts]
    widths = []
    for term, operand in zip(terms, operands, strict=True):
        named = len(term) - term.count(".")
        if operand.ndim < named or ("." not in term and operand.ndim != named):
            raise ShapeError(
                f"expected an operand of {named} dimensions{' or more' if '.' in term else ''} for "
                f"{term.replace('.', '...')!r}, got shape {operand.shape}"
            )
        widths.append(operand.ndim - named)
    width = max(widths)
    if width > len(free):
        raise ArgumentError(
            f"expected at most {len(ascii_letters)} dimensions in all, got {len(ascii_letters) + width}"
        )
    letters = "".join(free[:width])
    filled = [t.replace(".", letters[width - w :]) for t, w in zip(terms, widths, strict=True)]
    if output is None:
        seen = "".join(filled)
        output = letters + "".join(sorted(c for c in set(seen) - set(letters) if seen.count(c) == 1))
    elif "." in output:
        output = output.replace(".", letters)
    elif width:
        raise ArgumentError(f"expected an ellipsis in the output of {subscripts!r}: it stands for {width} dimensions")
    unknown = sorted(set(output) - set("".join(filled)))
    if unknown or len(set(output)) != len(output):
        wrong = f"{unknown} that no operand has" if unknown else "one twice"
        raise ArgumentError(f"expected each output index once and from the operands, got {wrong} in {subscripts!r}")
    return filled, output


def _sizes(terms: Sequence[str], operands: Sequence[Spec | Tensor]) -> dict[str, int]:
    """The length each index runs over; dimensions of length 1 are repeated."""
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        own = dict(zip(term, operand.shape, strict=True))
        for label, length in zip(term, operand.shape, strict=True):
            if own[label] != length:
                raise ShapeError(f"expected a diagonal for {label!r} in {term!r}, got shape {operand.shape}")
            known = sizes.setdefault(label, length)
            if known == 1:
                sizes[label] = length
            elif length not in (1, known):
                raise ShapeError(f"expected index {label!r} to have one length, got {known} and {length}")
    return sizes


def _einsum_rule(*operands: Spec, subscripts: str) -> Normal:
    if not operands:
        raise ArgumentError("expected at least one operand, got none")
    rules.expect(operands[0].dtype, "a numeric dtype", rules.is_numeric)
    terms, output = _without_ellipsis(subscripts, operands)
    sizes = _sizes(terms, operands)
    shape = tuple(sizes[label] for label in output)
    return Normal(spec(shape, operands[0].dtype), {"subscripts": f"{','.join(terms)}->{output}"})


def _einsum_vjp(g: Tensor, out: Tensor, *operands: Tensor, subscripts: str) -> tuple[Tensor, ...]:
    left, _, output = subscripts.partition("->")
    terms = left.split(",")
    sizes = _sizes(terms, operands)
    return tuple(_to_operand(i, g, output, operands, terms, sizes) for i in range(len(operands)))


def _to_operand(
    i: int, g: Tensor, output: str, operands: Sequence[Tensor], terms: Sequence[str], sizes: dict[str, int]
) -> Tensor:
    """The cotangent of one operand: the product of the output's with all other operands, summed over what the operand
    does not have."""
    factors = [g, *[conj(o) for j, o in enumerate(operands) if j != i]]
    labels = [output, *[t for j, t in enumerate(terms) if j != i]]
    fresh = (c for c in ascii_letters if c not in sizes)
    wanted = ""
    for label in terms[i]:
        if label not in wanted:
            wanted += label
            lengths = [f.shape[t.index(label)] for f, t in zip(factors, labels, strict=True) if label in t]
            if sizes[label] not in lengths:  # the operand alone runs over it: the same flows to each
                factors.append(ones((sizes[label],), dtype=g.dtype))
                labels.append(label)
        else:  # a diagonal: nothing flows to what lies beside it
            other = next(fresh)
            wanted += other
            factors.append(eye(sizes[label], dtype=g.dtype))
            labels.append(label + other)
    return _einsum(*factors, subscripts=f"{','.join(labels)}->{wanted}")


def _einsum_batch(op: Op[Any], batched: Flags, *operands: Tensor, subscripts: str) -> Any:
    free = [c for c in ascii_letters if c not in subscripts]
    if not free:
        return None
    left, _, output = subscripts.partition("->")
    terms = [free[0] * is_batched + term for is_batched, term in zip(batched, left.split(","), strict=True)]
    return applied(op, operands, {"subscripts": f"{','.join(terms)}->{free[0]}{output}"})


@op(OpKind.LINEAR_ALGEBRA, infer=_einsum_rule, vjp=_einsum_vjp, promotes_from=0, batch=_einsum_batch,
    role=Contraction.LABELS)  # fmt: skip
def _einsum(*operands: Arr, subscripts: str) -> Arr:
    return np.einsum(subscripts, *operands, optimize=len(operands) > 1)


@rules.named
def einsum(subscripts: str, /, *operands: Operand) -> Tensor:
    """The sum of products of the operands' elements, by names for their dimensions.

    Indices left out of the output are summed over; without `->`, the output has those that occur once, in alphabetical
    order. An index twice in one operand is its diagonal; `...` stands for further dimensions, which broadcast.

    >>> import yosegi as ys
    >>> a = ys.reshape(ys.arange(6), (2, 3))
    >>> ys.einsum("ij,kj->ik", a, a)
    Tensor([[ 5, 14],
            [14, 50]], dtype=int64, device=cpu)
    """
    if not isinstance(subscripts, str):
        raise ArgumentError(f"expected the subscripts as a string first, got {type(subscripts).__name__}")
    return _einsum(*operands, subscripts=subscripts)
