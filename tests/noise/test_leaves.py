"""Regions of leaves, against NumPy's own indexing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._noise.leaves import Leaf, Walk, named


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    region = []
    for n in shape:
        start = draw(st.integers(0, n))
        region.append((start, draw(st.integers(start, n))))
    return shape, tuple(region)


@given(boxes(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_walk_visits_the_entries_of_the_region_in_order(box, data):
    shape, region = box
    leaf = Leaf(shape, region)
    size = int(np.prod(shape))
    wanted = np.arange(size).reshape(shape)[tuple(slice(*part) for part in region)].reshape(-1)
    assert leaf.size == len(wanted)
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    found = [
        run.start + row * run.stride + i
        for run in Walk(leaf).runs(start, stop)
        for row in range(run.rows)
        for i in range(run.width)
    ]
    assert found == wanted[start:stop].tolist()


def test_whole_leaves_are_one_stretch():
    (run,) = Walk(Leaf((30, 40, 50))).runs(0, 60_000)
    assert (run.start, run.width, run.rows) == (0, 60_000, 1)


def test_columns_of_a_matrix_are_one_plate():
    (run,) = Walk(Leaf((1000, 64), ((0, 1000), (16, 32)))).runs(0, 16_000)
    assert (run.start, run.width, run.rows, run.stride) == (16, 16, 1000, 64)


def test_slices_and_pairs_say_the_same():
    assert Leaf((6, 4), (slice(1, 3), slice(None))) == Leaf((6, 4), ((1, 3), (0, 4)))
    assert Leaf((6, 4)) == Leaf((6, 4), (slice(None), slice(0, 4, 1)))


def test_a_leaf_survives_json():
    leaf = Leaf((6, 4), ((1, 3), (0, 4)))
    assert ap.from_json(ap.to_json(leaf)) == leaf


@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((6,), ((0, 7),)),
        ((6,), ((3, 2),)),
        ((6,), ((-1, 2),)),
        ((6,), (slice(0, 6, 2),)),
        ((6,), (slice(-3, None),)),
        ((6, 4), ((0, 6),)),
        ((6,), 3),
        ((6,), (2,)),
        ((-1,), None),
        ((2.0,), None),
        ((True,), None),
        (6, None),
        ("ab", None),
        ((2**40, 2**40), None),
    ],
)
def test_regions_that_do_not_fit_are_refused(shape, region):
    with pytest.raises(ap.InvalidArgument, match="parameter of Leaf"):
        Leaf(shape, region)


@pytest.mark.parametrize("leaves", [None, 5, "w", [5], {1: Leaf((3,))}])
def test_leaves_of_the_wrong_kind_are_refused(leaves):
    with pytest.raises(ap.InvalidArgument, match=r"'leaves' parameter of NoiseStream|'global_shape' parameter of Leaf"):
        named(leaves)
