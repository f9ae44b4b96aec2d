"""Where the values of a recording lie: nothing overlaps, and nobody keeps much more than they hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yosegi.devices.cuda.memory import ALIGNMENT, offsets_of
from yosegi.devices.cuda.recording_layout import Lifetime, blocks_of, slabs_of

SIZES = st.lists(st.integers(1, 1 << 22), max_size=60)
SPANS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 60), st.integers(0, 30)), max_size=60)


@given(SIZES)
def test_each_result_has_its_own_part_of_a_slab(sizes: list[int]) -> None:
    made = slabs_of(dict(enumerate(sizes)))
    assert sorted(value for slab in made for value in slab.offsets) == list(range(len(sizes)))
    for slab in made:
        end = 0
        for value, offset in slab.offsets.items():
            assert offset % ALIGNMENT == 0
            assert offset >= end
            end = offset + sizes[value]
        assert end <= slab.nbytes


@given(SIZES)
def test_a_result_that_is_kept_keeps_little_else(sizes: list[int]) -> None:
    for slab in slabs_of(dict(enumerate(sizes))):
        own = [sizes[value] for value in slab.offsets]
        assert max(own) <= 16 * max(16, min(own))
        assert len(own) <= 16 or slab.nbytes <= (64 << 10) + 16 * max(own)


def test_a_loss_is_not_kept_with_small_parameters() -> None:
    sizes = dict(enumerate([256] * 100 + [4]))
    (alone,) = [slab for slab in slabs_of(sizes) if 100 in slab.offsets]
    assert alone.nbytes == ALIGNMENT


@given(SPANS)
def test_values_that_are_in_use_together_have_different_blocks(made: list[tuple[int, int, int]]) -> None:
    spans = [Lifetime(n, nbytes, first, first + length) for n, (nbytes, first, length) in enumerate(made)]
    homes, sizes = blocks_of(spans)
    for one in spans:
        assert sizes[homes[one.value]] >= one.nbytes
        for other in spans:
            if one.value < other.value and homes[one.value] == homes[other.value]:
                assert one.last < other.first or other.last < one.first


def test_a_chain_takes_few_blocks() -> None:
    _, sizes = blocks_of([Lifetime(n, 1000, n, n + 1) for n in range(1000)])
    assert len(sizes) < 20


def test_offsets_are_aligned_and_apart() -> None:
    assert offsets_of([1, 256, 257, 10], 512) == ([512, 768, 1024, 1536], 1792)
