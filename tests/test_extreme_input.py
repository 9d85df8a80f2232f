"""Numbers, texts and sizes at the edge of what there is: used, or refused with a message; never a traceback."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase._record import parse_json
from tests.run.plans import LEAVES, STRATEGIES, plan_for
from tests.test_cli import run as command

BASE = ["--delta", "1e-5", "--min-separation", "6"]
LARGE = 10**40
EXTREME = {
    "an enormous epsilon": ["plan", "--steps", "24", "--epsilon", "1e308", *BASE],
    "the smallest epsilon": ["plan", "--steps", "24", "--epsilon", "5e-324", *BASE],
    "an epsilon that is no number": ["plan", "--steps", "24", "--epsilon", "nan", *BASE],
    "an infinite epsilon": ["plan", "--steps", "24", "--epsilon", "inf", *BASE],
    "an enormous number of steps": ["plan", "--steps", str(LARGE), "--epsilon", "1", *BASE],
    "an enormous separation": [
        *("plan", "--steps", "24", "--epsilon", "1", "--delta", "1e-5", "--min-separation", str(LARGE))
    ],
    "an enormous data set": [
        *("plan", "--steps", "24", "--epsilon", "1", "--delta", "1e-5", "--examples", str(LARGE), "--batch-size", "5")
    ],
    "steps that fit nowhere": [
        *("plan", "--steps", str(10**15), "--epsilon", "1", "--delta", "1e-5"),
        *("--min-separation", str(10**14), "--families", "tree"),
    ],
    "infinite memory": [
        *("plan", "--steps", "24", "--epsilon", "1", *BASE, "--memory-gb", "inf", "--parameters", "10")
    ],
}


@pytest.mark.parametrize("case", EXTREME)
def test_extreme_numbers_are_refused_with_a_hint(case):
    result = command(*EXTREME[case])
    assert result.exit_code in (1, 2)
    message, blank, hint = result.stderr.rstrip("\n").split("\n")
    assert (message[:7], blank, hint[:6]) == ("error: ", "", "hint: ")


def test_a_plan_for_more_steps_than_memory_holds_leaves_out_what_does_not_fit():
    budget, promise = ap.Budget(1.0, 1e-5), ap.MinSeparation(10**14)
    made = ap.plan(ap.Problem(10**15, budget, participation=promise), ["tree", "identity"])
    assert [candidate.name for candidate in made.candidates] == ["identity (DP-SGD)"]


MOST = 1 << 53
UNIT_COLUMNS = ap.strategies.Toeplitz([1.0, 0.5], MOST, column_normalized=True)
TOO_LONG = {
    "shuffled epochs": (ap.strategies.Identity(MOST), ap.ShuffledEpochs(3, MOST)),
    "every step": (ap.strategies.Toeplitz([1.0, 0.5], MOST), ap.EveryStep()),
    "column norms": (UNIT_COLUMNS, ap.SingleParticipation()),
    "bins": (ap.strategies.Identity(MOST), ap.BallsInBins(MOST, 4)),
    "bins and column norms": (UNIT_COLUMNS, ap.BallsInBins(MOST, 4)),
    "random separation": (ap.strategies.Identity(MOST), ap.PoissonMinSeparation(64, 0.01)),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_accounting_for_more_steps_than_memory_holds_names_the_steps(name):
    with pytest.raises(ap.NotEnoughMemory, match="9,007,199,254,740,992 steps"):
        ap.epsilon(ap.Mechanism(*TOO_LONG[name], noise_std=1.0), 1e-6)


def test_stamped_strategies_have_at_most_as_many_steps_as_others():
    longest = ap.strategies.Stamped(ap.strategies.Stamped(ap.strategies.Identity(4), 1 << 50), 2)
    assert ap.epsilon(ap.Mechanism(longest, ap.SingleParticipation(), noise_std=1.0), 1e-6).value > 0.0
    for block in (longest, ap.strategies.Identity(MOST), ap.strategies.Tree(3 << 50)):
        with pytest.raises(ap.InvalidArgument, match="'repeats' parameter of Stamped must be at most"):
            ap.strategies.Stamped(block, 1 << 50)


def test_bench_says_that_a_model_does_not_fit(tmp_path):
    plan_for(STRATEGIES["toeplitz"]).save(tmp_path / "plan.json")
    result = command("bench", str(tmp_path / "plan.json"), "--parameters", "1000000000000000")
    assert result.exit_code == 1
    assert "This machine has" in result.stderr


def test_memory_that_runs_out_is_an_error_with_a_hint(tmp_path, monkeypatch):
    from antiphase._cli import account

    def fail(*_):
        raise np._core._exceptions._ArrayMemoryError((10**12,), np.dtype(float))

    plan_for(STRATEGIES["toeplitz"]).save(tmp_path / "plan.json")
    monkeypatch.setattr(account, "print_facts", fail)
    result = command("account", str(tmp_path / "plan.json"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: There is not enough memory: Unable to allocate")
    assert "hint: " in result.stderr


KINDS = [np.int8, np.uint8, np.int32, np.int64]


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_integers_are_worth_what_python_s_are(kind, tmp_path):
    budget, promise = ap.Budget(2.0, 1e-5), ap.MinSeparation(kind(20))
    made = ap.Problem(kind(100), budget, kind(100), kind(10), promise, memory_copies=kind(3))
    wanted = ap.Problem(100, budget, 100, 10, ap.MinSeparation(20), memory_copies=3)
    assert made == wanted
    assert made.epochs == 10.0
    assert {type(getattr(made, name)) for name in ("steps", "examples", "batch_size", "memory_copies")} == {int}
    plan = ap.plan(made, ["identity", "toeplitz"])
    again = ap.plan(wanted, ["identity", "toeplitz"])
    assert plan.fingerprint == again.fingerprint
    plan.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json").fingerprint == again.fingerprint
    with ap.Run.open(plan, tmp_path / "run", leaves=[(kind(3),)], examples=kind(100)) as run:
        assert run.batch(kind(0)).indices.size == ap.Run.batch(run, 0).indices.size
        run.commit(kind(0), ap.digest(run.gradient_noise(kind(0))))
    with ap.Run.open(again, tmp_path / "run", leaves=[(3,)], examples=100) as run:
        assert run.committed == 1


class Deceptive(int):
    """A whole number that says something else about itself."""

    __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = __eq__ = lambda self, other: True
    __int__ = __index__ = lambda self: -7
    __hash__ = int.__hash__


@pytest.mark.parametrize("value", [-3, 0, 5])
def test_integers_are_worth_what_they_are_whatever_they_say(value):
    made = [
        lambda number: ap.strategies.Identity(number).steps,
        lambda number: ap.MinSeparation(number).separation,
        lambda number: ap.Lattice(-3, number, 2).norm,
        lambda number: ap.Problem(4, ap.Budget(1.0, 1e-6), memory_copies=number).memory_copies,
    ]
    for make in made:
        try:
            wanted = make(value)
        except ap.InvalidArgument:
            wanted = None
        if wanted is None:
            with pytest.raises(ap.InvalidArgument):
                make(Deceptive(value))
        else:
            found = make(Deceptive(value))
            assert (type(found), found) == (int, wanted)


def test_text_with_half_a_surrogate_pair_is_refused(tmp_path):
    plan = plan_for(STRATEGIES["toeplitz"])
    with pytest.raises(ap.InvalidArgument, match="UTF-8"):
        ap.Problem(12, plan.problem.budget, unit="user\ud800")
    with pytest.raises(ap.InvalidArgument, match="UTF-8"):
        ap.NoiseStream(plan, {"w\udfff": (3,)}, ap.Secret.insecure(1), "run")
    with pytest.raises(ap.InvalidArgument, match="UTF-8"):
        ap.NoiseStream(plan, [(3,)], ap.Secret.insecure(1), "run\ud800")
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40) as run:
        run.batch(0)
        run.commit(0, ap.digest(run.gradient_noise(0)))
        with pytest.raises(ap.InvalidArgument, match="UTF-8"):
            run.publish("weights\ud800")
        assert run.published == 0


@pytest.mark.parametrize("value", ["1.0", b"1.0", 10**400, True, None, [1.0], 1j])
def test_what_is_no_number_is_no_budget(value):
    with pytest.raises(ap.InvalidArgument, match="'epsilon' parameter of Budget"):
        ap.Budget(value, 1e-6)
    with pytest.raises(ap.InvalidArgument, match="'delta' parameter of Budget"):
        ap.Budget(1.0, value)


@pytest.mark.parametrize("value", ["x", None, True, [1.0], math.nan, 10**400])
def test_what_is_no_number_is_no_bound(value):
    with pytest.raises(ap.InvalidArgument, match="'value' parameter of Bound"):
        ap.Bound(value, "exact", "", "")


@pytest.mark.parametrize("value", [None, 1, b"x", "\ud800"])
@pytest.mark.parametrize("name", ["method", "reference"])
def test_what_is_no_text_does_not_describe_a_bound(name, value):
    with pytest.raises(ap.InvalidArgument, match=f"'{name}' parameter of Bound"):
        ap.Bound(**{"value": 1.0, "kind": "exact", "method": "", "reference": "", name: value})


PROMISES = [ap.Poisson(0.25), ap.CyclicPoisson(4, 0.5), ap.FixedSize(4, 5), ap.MinSeparation(4)]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: type(promise).__name__)
@pytest.mark.parametrize("noise", [5e-324, 1e-300, 1e-150, 1e-70, 1e-5, 1e11, 1e100, 1e308])
def test_any_noise_has_an_epsilon_and_a_delta(promise, noise):
    """Infinite and 1 where there is next to none, and never more than for less noise."""
    adjacency = "replace" if isinstance(promise, ap.FixedSize) else "zero-out"
    mechanism = ap.Mechanism(ap.strategies.Identity(12), promise, noise, adjacency, 40)
    epsilon, delta = ap.epsilon(mechanism, 1e-5).value, ap.delta(mechanism, 1.0).value
    if noise < 1e-4:
        assert (epsilon > 1e7, delta) == (True, 1.0)
    else:
        assert epsilon < 1e-4
        assert delta < 1e-20


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a": NaN}', "finite"),
        (b'{"a": -Infinity}', "finite"),
        (b'{"a": 1e999}', "finite"),
        (b'{"a": 1, "a": 2}', "duplicate"),
        (b"[" * 10**6 + b"]" * 10**6, "deeply"),
        (b'"\\ud800"', "surrogates"),
        (b'"\xff"', "decode"),
        (b"9" * 10_000, "digits"),
    ],
    ids=["NaN", "infinity", "too large", "a key twice", "deep", "a lone surrogate", "not UTF-8", "many digits"],
)
def test_json_that_is_never_written_is_not_read(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


FIELDS = [
    {"type": "MinSeparation", "separation": 4.0},
    {"type": "MinSeparation", "separation": True},
    {"type": "Toeplitz", "coefficients": ["1.0"], "steps": 4},
    {"type": "Toeplitz", "coefficients": [True], "steps": 4},
    {"type": "Toeplitz", "coefficients": [1.0], "steps": 4, "column_normalized": 1},
    {"type": "Budget", "epsilon": "1", "delta": 0.5},
    {"type": "Bound", "value": [], "kind": "exact", "method": "", "reference": ""},
    {"type": "Bound", "value": 1.0, "kind": "certain", "method": "", "reference": ""},
    {"type": "Leaf", "global_shape": 3},
    {"type": ["Leaf"]},
    {"type": {}},
]


@pytest.mark.parametrize("data", FIELDS, ids=str)
def test_stored_fields_of_another_type_are_refused(data):
    with pytest.raises(ap.InvalidArgument, match=r"wrong type|unknown to this version"):
        ap.from_json(data)
