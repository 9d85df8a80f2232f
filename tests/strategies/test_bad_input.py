"""Invalid arguments raise `InvalidArgument` with a hint, before any computation."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Toeplitz

NAN = float("nan")

BAD = {
    "zero steps": lambda: Identity(0),
    "negative steps": lambda: Toeplitz([1.0], -3),
    "fractional steps": lambda: Identity(2.5),
    "boolean steps": lambda: Identity(True),
    "nan coefficient": lambda: Toeplitz([1.0, NAN], 4),
    "infinite coefficient": lambda: BandedInverse([1.0, float("inf")], 4),
    "zero diagonal of a filter": lambda: Toeplitz([0.0, 1.0], 4),
    "zero diagonal of an inverse filter": lambda: BandedInverse([0.0, 1.0], 4),
    "more coefficients than steps": lambda: Toeplitz([1.0, 0.5, 0.2], 2),
    "no coefficients": lambda: Toeplitz([], 2),
    "a word for a boolean": lambda: Toeplitz([1.0, 0.5], 4, column_normalized="False"),
    "a number for a boolean": lambda: Toeplitz([1.0, 0.5], 4, column_normalized=1),
    "a decoder that is an array": lambda: ap.strategies.Tree(4, decoder=np.ones(2)),
    "two-dimensional coefficients": lambda: Toeplitz([[1.0, 0.5]], 2),
    "zero on a banded diagonal": lambda: Banded([[1.0, 0.5], [0.0, 0.0]]),
    "entries below the last row": lambda: Banded([[1.0, 0.5], [1.0, 0.5]]),
    "more bands than steps": lambda: Banded([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
    "singular dense": lambda: Dense([[1.0, 0.0], [1.0, 0.0]]),
    "singular general dense": lambda: Dense([[1.0, 1.0], [1.0, 1.0]]),
    "wide dense": lambda: Dense([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
    "nan in dense": lambda: Dense([[NAN]]),
    "text for a matrix": lambda: Dense("abc"),
    "decay above one": lambda: BLT([1.01], [0.1], 4),
    "negative decay": lambda: BLT([-0.1], [0.1], 4),
    "scale of another length": lambda: BLT([0.5, 0.4], [0.1], 4),
    "equal decays": lambda: BLT.from_decays([0.5, 0.5], [0.4, 0.3], 4),
    "decays of another length": lambda: BLT.from_decays([0.5], [0.4, 0.3], 4),
    "bands of zero": lambda: BandedInverse.square_root(0, 4),
    "root of a schedule": lambda: BandedInverse.square_root(2, 3, ap.Momentum(0.9, [0.1, 0.2, 0.3])),
    "geometric decay above one": lambda: BandedInverse.geometric(1.5, 3),
    "momentum of one": lambda: ap.Momentum(1.0),
    "negative momentum": lambda: ap.Momentum(-0.1),
    "learning rate of zero": lambda: ap.Momentum(0.9, [0.1, 0.0]),
    "nan learning rate": lambda: ap.Momentum(0.9, [0.1, NAN]),
    "weight decay too large": lambda: ap.Momentum(0.9, [2.0], weight_decay=0.6),
    "schedule of another length": lambda: ap.error(Identity(3), ap.Momentum(0.9, [0.1, 0.2])),
    "schedule with a floor of zero": lambda: ap.schedules.linear(10, floor=0.0),
    "warm-up and cool-down that overlap": lambda: ap.schedules.linear(10, warmup=0.8, cooldown=0.4),
    "zero epochs": lambda: ap.FixedEpochs(0, 10),
    "separation of zero": lambda: ap.MinSeparation(0),
    "zero participations": lambda: ap.MinSeparation(3, 0),
    "rate of zero": lambda: ap.Poisson(0.0),
    "rate above one": lambda: ap.CyclicPoisson(4, 1.5),
    "zero groups": lambda: ap.CyclicPoisson(0, 0.5),
    "batch of zero": lambda: ap.FixedSize(2, 0),
    "more steps than epochs hold": lambda: ap.sensitivity(Identity(11), ap.FixedEpochs(2, 5)),
    "more steps than shuffled epochs hold": lambda: ap.sensitivity(Identity(11), ap.ShuffledEpochs(2, 5)),
    "unknown objective": lambda: ap.loss(Identity(3), ap.PrefixSum(), ap.EveryStep(), "mean"),
    "a number where a kind is meant": lambda: ap.Bound(1.0, "sure", "", ""),
    "nan bound": lambda: ap.Bound(NAN, "exact", "", ""),
    "an inverse that grows without bound": lambda: ap.error(Toeplitz([1.0, 10.0], 1000), ap.PrefixSum()),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_hint(case):
    with pytest.raises(ap.AntiphaseError) as caught:
        BAD[case]()
    assert isinstance(caught.value, ValueError)
    assert "\n\nhint: " in str(caught.value)


def test_a_dense_matrix_too_large_for_memory_is_refused():
    with pytest.raises(ap.NotEnoughMemory, match="would not fit"):
        Identity(10**6).encoder()


def test_a_bound_does_not_become_a_float_by_itself():
    with pytest.raises(TypeError, match="Bound"):
        float(ap.Bound(1.0, "exact", "closed-form", ""))


def test_the_stored_form_of_an_unknown_type_is_refused():
    with pytest.raises(ap.InvalidArgument, match="unknown to this version"):
        ap.from_json({"type": "Unheard"})
    with pytest.raises(ap.InvalidArgument, match="unexpected or missing fields"):
        ap.from_json({"type": "Identity", "stepps": 3})
    with pytest.raises(ap.InvalidArgument, match="cannot be read"):
        ap.from_json({"float64": "AAAA", "shape": [7]})
    with pytest.raises(ap.InvalidArgument, match="'coefficients' parameter of Toeplitz"):
        ap.from_json({"type": "Toeplitz", "coefficients": [0.0], "steps": 3})


def test_workload_of_numpy_scalars_is_accepted():
    assert Identity(np.int64(3)).steps == 3
