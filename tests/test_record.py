"""Records: tags that outlive a rename, and fields that can be added later."""

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase import _record
from antiphase._plan.candidate import digestible, upgraded
from antiphase._record import fingerprint, from_json, optional, record, tag_of, to_json
from tests.catalog import every_strategy

STORED = Path(__file__).parent / "stored"


@pytest.fixture(autouse=True)
def scratch_records(monkeypatch):
    """Forget the records that a test declares."""
    monkeypatch.setattr(_record, "_classes", dict(_record._classes))
    monkeypatch.setattr(_record, "_tags", dict(_record._tags))


def test_the_default_tag_is_the_name_of_the_class():
    @record
    class Plain:
        size: int

    assert tag_of(Plain(1)) == "Plain"
    assert to_json(Plain(1)) == {"type": "Plain", "size": 1}


def test_a_renamed_class_keeps_its_tag_its_files_and_its_fingerprint():
    def declared(make):
        @make
        class Thing:
            size: int

        return Thing

    before = declared(record)(3)
    written, printed = to_json(before), fingerprint(before)
    del _record._classes["Thing"]

    @record(tag="Thing")
    class Renamed:
        size: int

    assert from_json(written) == Renamed(3)
    assert to_json(Renamed(3)) == written
    assert fingerprint(Renamed(3)) == printed


def test_a_renamed_class_is_not_known_by_its_new_name():
    @record(tag="Old")
    class New:
        size: int

    assert New(1) == from_json({"type": "Old", "size": 1})
    with pytest.raises(ap.InvalidArgument, match="The stored type 'New' is unknown"):
        from_json({"type": "New", "size": 1})


def test_two_records_cannot_share_a_tag():
    record(tag="Taken")(type("First", (), {}))
    with pytest.raises(TypeError, match="First and Second have the same tag, 'Taken'"):
        record(tag="Taken")(type("Second", (), {}))
    with pytest.raises(TypeError, match="First and Taken have the same tag, 'Taken'"):
        record(type("Taken", (), {}))


def test_a_class_that_only_has_the_name_of_a_record_is_not_one():
    with pytest.raises(TypeError, match="cannot write PrefixSum as JSON"):
        to_json(type("PrefixSum", (), {})())


def test_a_field_added_later_leaves_old_files_and_fingerprints_alone():
    @record(tag="Growing")
    class Before:
        size: int

    written, printed = to_json(Before(3)), fingerprint(Before(3))
    del _record._classes["Growing"]

    @record(tag="Growing")
    class After:
        size: int
        colour: str = optional("none")

    assert from_json(written) == After(3)
    assert to_json(After(3)) == written
    assert fingerprint(After(3)) == printed
    assert to_json(After(3, "red")) == {**written, "colour": "red"}
    assert fingerprint(After(3, "red")) != printed
    assert from_json(to_json(After(3, "red"))) == After(3, "red")


def test_monte_carlo_is_stored_under_its_first_name():
    # Seeds of sampled bounds are a hash of this JSON: another tag would draw other samples.
    assert to_json(ap.MonteCarlo(seed=1))["type"] == "Sampling"
    assert fingerprint(ap.MonteCarlo()) == ("26c5b65d505dc89314b5b206b37beca2d95cd82086c24fbf155093abfda0eb7b")


@pytest.mark.parametrize("path", sorted(STORED.glob("*/plans/*.json")), ids=lambda path: path.stem)
def test_stored_plans_are_written_again_as_they_were(path):
    """Loading and writing a plan of an earlier version changes neither a tag nor a field.

    Since then plans have gained a `deviation`, which is always written: files without one may come from a server.
    Candidates have gained a family, and are compared in the form that version 0.1.0 wrote.
    """
    data = json.loads(path.read_text())["plan"]
    plan = from_json(data | {"candidates": [upgraded(candidate) for candidate in data["candidates"]]})
    written = to_json(plan) | {"candidates": [digestible(candidate) for candidate in plan.candidates]}
    assert written == {"deviation": "", **data}


class Liar(str):
    """A string that equals and prints as it likes."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __str__(self):
        return "zero-out"

    __repr__ = __str__


def test_strings_are_stored_as_plain_strings():
    mechanism = ap.Mechanism(ap.strategies.Identity(1), ap.EveryStep(), 1.0, Liar("add-or-remove"))
    assert type(mechanism.adjacency) is str
    assert mechanism == ap.Mechanism(ap.strategies.Identity(1), ap.EveryStep(), 1.0, "add-or-remove")
    assert type(ap.strategies.Tree(3, Liar("full")).decoder) is str
    problem = ap.Problem(
        1,
        ap.Budget(1.0, 1e-6),
        participation=ap.EveryStep(),
        adjacency=Liar("replace"),
        objective=Liar("max"),
        unit=Liar("user"),
    )
    assert [problem.adjacency, problem.objective, problem.unit] == ["replace", "max", "user"]
    assert {type(problem.adjacency), type(problem.objective), type(problem.unit)} == {str}


@pytest.mark.parametrize(
    "make",
    [
        lambda name: ap.Mechanism(ap.strategies.Identity(1), ap.EveryStep(), 1.0, name),
        lambda name: ap.strategies.Tree(3, name),
        lambda name: ap.strategies.Fourier(3, name),
        lambda name: ap.Problem(1, ap.Budget(1.0, 1e-6), participation=ap.EveryStep(), adjacency=name),
        lambda name: ap.loss(ap.strategies.Identity(1), ap.PrefixSum(), ap.EveryStep(), name),
    ],
)
def test_a_string_that_equals_everything_is_refused(make):
    with pytest.raises(ap.InvalidArgument, match=" or "):
        make(Liar("nothing"))


def test_a_record_inherits_the_checks_of_its_base():
    class Checked:
        def __post_init__(self):
            assert self.size > 0

    @record
    class Sized(Checked):
        size: int
        name: str = "a"

    assert type(Sized(1, Liar("b")).name) is str
    with pytest.raises(AssertionError):
        Sized(0)


def arrays_of(value):
    return [array for array in vars(value).values() if isinstance(array, np.ndarray)]


ARRAYS = [
    *(pytest.param(made, id=name) for name, made in every_strategy(6)),
    pytest.param(ap.Momentum(0.5, np.linspace(1.0, 0.5, 6)), id="momentum"),
    pytest.param(ap.strategies.Dense(np.asfortranarray(np.tril(np.arange(1.0, 17.0).reshape(4, 4)))), id="fortran"),
    pytest.param(ap.strategies.Toeplitz(np.arange(1.0, 9.0)[::2], 5), id="strided"),
]


@pytest.mark.parametrize("value", ARRAYS)
def test_no_flag_makes_the_arrays_of_a_record_writeable(value):
    for copied in (value, copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert copied == value
        for array in arrays_of(copied):
            owner = array
            while isinstance(owner, np.ndarray):
                with pytest.raises(ValueError, match="WRITEABLE"):
                    owner.setflags(write=True)
                owner = owner.base
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


def test_a_copy_keeps_the_order_of_memory():
    """Linear algebra in another order rounds differently."""
    matrix = np.asfortranarray(np.tril(np.arange(1.0, 17.0).reshape(4, 4)))
    stored = ap.strategies.Dense(matrix).matrix
    assert stored.strides == matrix.strides
    np.testing.assert_array_equal(stored, matrix)
    turned = ap.strategies.Dense(np.tril(np.arange(1.0, 37.0).reshape(6, 6))[::-1, ::-1].T[:4, :4]).matrix
    assert turned.flags.f_contiguous
