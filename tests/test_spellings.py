"""Keywords of other libraries are recognised, and the error says what to write."""

import re
from operator import attrgetter

import pytest

import yosegi as ys
from yosegi._tensor.spellings import NAMES, SPELLINGS

X = ys.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ys.nn.dropout(X, p=0.5), r"^\[dropout\] has no p=; use rate=$"),
        (lambda: ys.sum(X, dim=0), r"^\[sum\] has no dim=; use axis=$"),
        (lambda: ys.sum(X, axis=0, keepdim=True), r"^\[sum\] has no keepdim=; use keepdims=$"),
        (lambda: X.mean(dim=0), r"\[mean\] has no dim=; use axis="),
        (lambda: ys.std(X, ddof=1), r"^\[std\] has no ddof=; use correction=$"),
        (lambda: ys.concat([X, X], dim=1), r"^\[concat\] has no dim=; use axis=$"),
        (lambda: ys.permute_dims(X, dims=(1, 0)), r"^\[permute_dims\] has no dims=; use axes=$"),
        (lambda: ys.nn.linear(X, X, bias=X), r"^\[linear\] has no bias=; use b=$"),
        (lambda: ys.sin(X, out=X), r"^\[sin\] has no out=; use the result: tensors are values$"),
    ],
)
def test_a_keyword_of_another_library_is_recognised(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_an_unknown_keyword_is_still_an_error():
    with pytest.raises(TypeError, match="colour"):
        ys.sum(X, colour=1)
    with pytest.raises(TypeError, match="colour"):
        ys.concat([X], colour=1)


def test_no_spelling_is_one_of_ours():
    for name, table in SPELLINGS.items():
        function = getattr(ys, name, None) or getattr(ys.nn, name, None)
        if function is not None and hasattr(function, "__signature__"):
            assert not set(table) & set(function.__signature__.parameters) - {"dims"}


def test_a_name_of_another_library_is_recognised():
    with pytest.raises(AttributeError, match=r"^module 'yosegi' has no cat; use ys\.concat$"):
        ys.cat  # noqa: B018
    with pytest.raises(AttributeError, match=r"^module 'yosegi' has no nonsense$"):
        ys.nonsense  # noqa: B018
    assert not hasattr(ys, "clamp")


def test_the_names_that_are_advised_are_there_and_the_others_are_not():
    for name, here in NAMES.items():
        assert not hasattr(ys, name)
        for advised in re.findall(r"\bys((?:\.\w+)+)", here):
            attrgetter(advised[1:])(ys)
