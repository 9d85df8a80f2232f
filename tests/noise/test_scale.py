"""The noise is the plan's at every scale of C and noise_std, or the stream is refused before its first step."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase._kernels import solve_bands
from antiphase._noise import Canonical, NoiseStream, check_noise, check_sizes, host_check
from antiphase._noise.sizes import _inverse_series, _later_norm, sizes
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.catalog import every_strategy, random_banded, random_lower
from tests.noise.streams import SECRET, flat, stream, take, white
from tests.run.plans import plan_for
from tests.scales import SCALES, STD, departure, has_scale, scaled

STATES = json.loads(Path(__file__).with_name("stored_states.json").read_text())
STRATEGIES = dict(every_strategy(12))
SCALABLE = {name: strategy for name, strategy in STRATEGIES.items() if has_scale(strategy)}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
SLOW_SCALES = [pytest.param(scale, marks=pytest.mark.slow) for scale in SCALES if scale not in (1e-300, 1e-44, 1e60)]


class Frozen:
    """A plan whose fingerprint, and so z, does not follow its numbers."""

    fingerprint = "golden"

    def __init__(self, strategy, noise_std=0.75):
        self.strategy, self.noise_std = strategy, noise_std


def outcome(strategy, noise_std, dtype, base, std):
    """How far the noise is from std N z for the N of `base`; None where it is refused."""
    try:
        made = stream(strategy, [(200,)], noise_std, dtype=dtype)
    except (ap.Refused, ap.InvalidArgument):
        return None
    return departure(take(made), base, white(made, strategy.rows), std)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-300, 1e-44, 1e60, *SLOW_SCALES])
def test_scaling_c_and_noise_together_changes_nothing(scale, dtype):
    for name, strategy in SCALABLE.items():
        found = outcome(*scaled(strategy, scale), dtype, strategy, STD)
        assert found is not None, name
        assert found < TOLERANCE[dtype], name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e-40, 1e-35, 1e-20, 1e20, 1e35, 1e100, 1e300])
def test_noise_of_extreme_size_is_right_or_refused(scale, dtype):
    """noise_std alone is scaled, and so the noise: float32 holds little of this range."""
    for name, strategy in STRATEGIES.items():
        found = outcome(strategy, STD * scale, dtype, strategy, STD * scale)
        assert found is None or found < TOLERANCE[dtype], name
        holds = 1e-30 < scale < 1e29 if dtype == "float32" else 1e-288 < scale < 1e287
        assert (found is not None) == holds, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [3, 20, 35, 60, 150, 300, pytest.param(305, marks=pytest.mark.slow)])
def test_columns_of_different_scales_are_right_or_refused(spread, dtype):
    """C D with D diagonal has the noise D^-1 C^-1 z: the oracle is C at scale 1."""
    rng = np.random.default_rng(spread)
    is_right = 0
    for trial in range(12):
        base = random_banded(rng, 10, 3, signed=trial % 2 == 0)
        sizes_of = 10.0 ** (spread * rng.uniform(-1, 1, size=10))
        columns = base.columns * sizes_of[:, None]
        dense = np.tril(Banded(columns).encoder()) if trial % 3 == 0 and spread < 300 else None
        strategy = Banded(columns) if dense is None else Dense(dense)
        try:
            made = stream(strategy, [(100,)], STD, dtype=dtype)
        except ap.Refused:
            continue
        noise = take(made).astype(np.float64) * sizes_of[:, None]
        assert departure(noise, base, white(made, 10)) < 1e-4
        is_right += 1
    assert is_right == 12 if spread == 3 else True
    assert is_right == 0 if (dtype, spread) in [("float32", 150), ("float32", 300)] else True


def test_a_power_of_two_changes_no_bit():
    coefficients = Toeplitz.square_root(20, 6).coefficients
    for dtype in ("float32", "float64"):
        wanted = take(NoiseStream(Frozen(Toeplitz(coefficients, 20)), [(40,)], SECRET, dtype=dtype))
        for exponent in (-1000, -500, -120, -90, 90, 120, 500, 1000):
            plan = Frozen(Toeplitz(np.ldexp(coefficients, exponent), 20), np.ldexp(0.75, exponent))
            assert take(NoiseStream(plan, [(40,)], SECRET, dtype=dtype)).tobytes() == wanted.tobytes()


def test_the_plan_that_had_no_noise_at_all_has_its_covariance(tmp_path):
    """The product of the whitened noise of two steps is 0, its square 1, each within five standard errors."""
    base = Toeplitz.square_root(40, bands=20)
    strategy = Toeplitz(base.coefficients * 1e50, 40)
    noise_std = 2.5 * ap.sensitivity(strategy, ap.MinSeparation(4)).value
    entries = 20_000
    with ap.Run.open(plan_for(strategy, noise_std=noise_std), tmp_path, leaves=[(entries,)], examples=40) as run:
        rows = []
        for step in range(40):
            run.batch(step)
            rows.append(run.gradient_noise(step)[0].astype(np.float64))
            run.commit(step, bytes(32))
    whitened = base.multiply(np.stack(rows)) / (noise_std / 1e50)
    off = np.abs(whitened @ whitened.T / entries - np.eye(40))
    assert off[np.triu_indices(40, 1)].max() < 5.0 / np.sqrt(entries)
    assert np.diag(off).max() < 5.0 * np.sqrt(2.0 / entries)


@pytest.mark.parametrize("name", ["blt", "toeplitz", "large"])
def test_states_stored_before_c_was_scaled_go_on_bit_for_bit(name, tmp_path):
    strategy, noise_std = {
        "blt": (BLT([0.9, 0.5], [0.2, 0.1], 6), 0.75),
        "toeplitz": (Toeplitz([1.0, 0.5, 0.25], 6), 0.75),
        "large": (Toeplitz([2.0**80, 2.0**79], 6), 2.0**80),
    }[name]
    (tmp_path / "state").write_bytes(bytes.fromhex(STATES[name]["state"]))
    secret = ap.Secret.insecure(42)
    made = NoiseStream.load(tmp_path / "state", Frozen(strategy, noise_std), secret)
    assert [flat(made.next()).tobytes().hex() for _ in range(3)] == STATES[name]["rest"]
    replayed = NoiseStream(Frozen(strategy, noise_std), [(5,)], secret, "old run", start_step=3)
    assert [flat(replayed.next()).tobytes().hex() for _ in range(3)] == STATES[name]["rest"]


def test_a_state_of_another_scale_is_refused(tmp_path):
    """Its numbers are 2^110 times too small for the C that is used now. The noise can be replayed."""
    plan = Frozen(Toeplitz([2.0**110, 2.0**109], 6), 2.0**110)
    (tmp_path / "state").write_bytes(bytes.fromhex(STATES["beyond"]["state"]))
    with pytest.raises(ap.Corrupted, match="another scale"):
        NoiseStream.load(tmp_path / "state", plan, ap.Secret.insecure(42))


@pytest.mark.parametrize("name", SCALABLE)
def test_scaled_streams_are_saved_and_resumed(name, tmp_path):
    strategy, noise_std = scaled(SCALABLE[name], 1e60)
    plan = Frozen(strategy, noise_std)
    wanted = take(NoiseStream(plan, [(7,)], SECRET))
    made = NoiseStream(plan, [(7,)], SECRET)
    for step in range(12):
        made.save(tmp_path / "state")
        made = NoiseStream.load(tmp_path / "state", plan, SECRET)
        assert flat(made.next()).tobytes() == wanted[step].tobytes()


@pytest.mark.parametrize("name", STRATEGIES)
def test_sizes_are_those_of_the_dense_matrices(name):
    """For the stochastic estimates of banded and dense matrices within a factor of 3."""
    strategy, found = STRATEGIES[name], sizes(STRATEGIES[name])
    C, N = strategy.encoder(), strategy.noising()
    rows = np.linalg.norm(N, axis=1)
    slack = 3.0
    assert rows.min() / slack < found.smallest < slack * rows.min()
    assert rows.max() / slack < found.largest < slack * rows.max()
    if len(C) == strategy.steps:
        lost = np.sqrt(C**2 @ rows**2).max()
        assert lost / slack < found.rounding < 2 * slack * lost


def test_sizes_of_a_blt_are_those_of_its_recursion():
    for steps in (1, 2, 7, 300):
        strategy = BLT([0.99, 0.7], [0.1, 0.3], steps)
        assert sizes(strategy).largest == pytest.approx(np.linalg.norm(strategy.noising()[-1]), rel=1e-9)


def one_echo(coefficients, lag, size):
    """C with a 1 on the diagonal and `size` at one lag: C^-1 is (-size)^k at k lags, and 0 elsewhere."""
    c = np.zeros(coefficients)
    c[[0, lag]] = 1.0, size
    return c


@pytest.mark.parametrize("kind", [Toeplitz, BandedInverse])
def test_all_steps_of_a_long_run_are_looked_at(kind):
    """The noise grows at the 8,190th step and again at the 16,380th, after more products than substitution may take."""
    c = one_echo(8200, 8190, 3e4)
    found = sizes(kind(c, 16_500))
    assert found.rounding == pytest.approx(np.linalg.norm([1.0, 3e4]) * np.linalg.norm([1.0, 3e4, 9e8]), rel=1e-6)
    with pytest.raises(ap.Refused, match="ill-conditioned"):
        check_noise(kind(c, 16_500), 9e4, np.dtype("float32"), lambda z, steps: z)


def test_all_steps_of_a_long_banded_run_are_looked_at():
    """The last hundred steps double the noise each, after 2^26 products with the probes."""
    columns = np.zeros((1 << 14 | 200, 512))
    columns[:, 0] = 1.0
    columns[-100:-1, 1] = 2.0
    assert sizes(Banded(columns)).rounding > 2.0**95


@pytest.mark.parametrize("bands", [17, 300, 5000])
def test_long_inverse_series_are_those_of_substitution(bands):
    """Transforms take over from substitution after 1,024 terms; the inverse of a square root decays, so all digits."""
    c = Toeplitz.square_root(20_000, bands).coefficients
    impulse = np.zeros((20_000, 1))
    impulse[0] = 1.0
    wanted = solve_bands(c[None], impulse)[:, 0]
    assert np.abs(_inverse_series(c, 20_000, 1024) - wanted).max() < 1e-14


@pytest.mark.parametrize("c", [[1.0, -0.9], [1.0, 0.5, 0.3, 0.1], [1.0, -1.6, 0.8], [0.5, -0.5], [1.0, -1.01]])
def test_what_follows_the_terms_looked_at_is_bounded(c):
    impulse = np.zeros((400, 1))
    impulse[0] = 1.0
    series = solve_bands(np.array(c)[None], impulse)[:, 0]
    for count in (40, 100, 133):
        bound = _later_norm(np.array(c), series[:count], 400)
        assert np.linalg.norm(series[count:]) <= bound
        if count == 133 and np.abs(series[100:133]).max() < 1e-4:  # what decays is not held against a run
            assert bound < 0.1


@pytest.mark.slow
def test_ordinary_strategies_are_right_however_long_the_run():
    """Of these only the first 2^22 terms are made."""
    inverse = BandedInverse.square_root(32, 10**12)
    for strategy in (Toeplitz.square_root(5_000_000, 32), inverse):
        check_sizes(strategy, 1.0, np.dtype("float32"))
    growing = BandedInverse(np.append(inverse.coefficients, -0.5), 10**12)
    with pytest.raises(ap.Refused, match="float32"):
        check_sizes(growing, 1.0, np.dtype("float32"))


def test_a_blt_with_full_buffers_loses_as_many_digits_as_is_said():
    """Each of these would be off by some percent of z in float32, by what its buffers lose; found by trying."""
    rng, least, most = np.random.default_rng(8), np.inf, 0.0
    for _ in range(20):
        decay, scale = 1 - 10.0 ** rng.uniform(-5, -1, 2), rng.uniform(0.2, 3, 2) * [1, -1]
        strategy = BLT(decay, scale - scale.mean(), 1000)
        scale32, loss32 = (part.astype(np.float32)[:, None] for part in strategy.recursion().constants("float64"))
        buffers, rows = np.zeros((2, 16), np.float32), []
        z = rng.standard_normal((1000, 16)).astype(np.float32)
        with np.errstate(all="ignore"):
            for row in z:
                rows.append(row - (scale32 * buffers).sum(0))
                buffers += rows[-1] - loss32 * buffers
            noise = np.stack(rows).astype(np.float64)
            off = np.sqrt(np.square(strategy.multiply(noise) - z).mean(1)).max() if np.isfinite(noise).all() else np.inf
        said = 2.0**-24 * sizes(strategy).rounding
        if off < 0.1:
            least, most = min(least, said / off), max(most, said / off)
        else:
            assert not said < 2.0**-8
    assert 0.3 < least < most < 300.0


@pytest.mark.parametrize(
    ("strategy", "float64_holds"),
    [
        (Toeplitz([1.0, 2.0], 40), True),
        (Toeplitz([1.0, 2.0], 200), False),
        (BLT([0.5], [3.0], 30), True),
        (BLT([0.5], [3.0], 300), False),
        (BandedInverse([1.0, -2.0], 40), True),
        (BandedInverse([1.0, -2.0], 200), False),
        (random_lower(np.random.default_rng(0), 60), True),
        (Stamped(Toeplitz([1.0, 3.0], 25), 2), True),
        (Banded(Toeplitz([1.0, 2.0], 40).columns()), True),
    ],
)
def test_digits_lost_late_in_the_run_are_refused_before_it(strategy, float64_holds):
    """C^-1 grows from step to step, until the z of a step is less than the spacing of the numbers it is added to."""
    with pytest.raises(ap.Refused, match="float32"):
        stream(strategy, [(3,)])
    if float64_holds:
        made = stream(strategy, [(50,)], dtype="float64")
        z = white(made, strategy.rows)
        assert np.abs(strategy.multiply(take(made)) - z).max() < 0.1
    else:
        with pytest.raises(ap.Refused, match="float64"):
            stream(strategy, [(3,)], dtype="float64")


@pytest.mark.parametrize(
    "strategy",
    [Identity(40), Toeplitz.square_root(40, 5), BLT([0.9], [0.2], 40), Tree(40), Stamped(Tree(8), 5), Fourier(12)],
)
@pytest.mark.parametrize(
    "fault",
    [
        lambda noise: 0.0 * noise,
        lambda noise: 0.99 * noise,
        lambda noise: -noise,
        lambda noise: np.where(np.arange(len(noise))[:, None] == len(noise) - 1, np.nan, noise),
        lambda noise: np.where(np.arange(len(noise))[:, None] == len(noise) - 1, 0.0, noise),
        lambda noise: np.roll(noise, 1, axis=0),
        lambda noise: noise.round(),
    ],
)
def test_a_source_that_makes_other_noise_is_refused(strategy, fault):
    made, dtype = Canonical(strategy, STD, 0), np.dtype("float32")

    def right(z, steps):
        return host_check._respond(made, dtype, None, False, z, steps)

    check_noise(strategy, STD, dtype, right)
    with pytest.raises(ap.Refused, match="differs from the float64 reference"):
        check_noise(strategy, STD, dtype, lambda z, steps: fault(right(z, steps)))


def test_a_wrong_power_of_two_is_refused(monkeypatch):
    """The check compares with C and noise_std as the plan has them, not as they were scaled."""
    right = host_check.canonical

    def wrong(strategy, noise_std, dtype):
        made = right(strategy, noise_std, dtype)
        return replace(made, noise_std=made.noise_std / 2)

    for strategy in (*(scaled(s, 1e60)[0] for s in SCALABLE.values()), *STRATEGIES.values()):
        noise_std = scaled(strategy, 1.0)[1] * (1e60 if np.abs(strategy.noising()).max() < 1e-50 else 1.0)
        stream(strategy, [(3,)], noise_std)
        with monkeypatch.context() as patched:
            patched.setattr(host_check, "canonical", wrong)
            with pytest.raises(ap.Refused, match="differs from the float64 reference"):
                stream(strategy, [(3,)], noise_std)


@pytest.mark.parametrize("normalized", [False, True])
def test_stamped_strategies_may_be_stamped_again(normalized):
    base = Stamped(Stamped(Toeplitz([1.0, 0.5], 3, column_normalized=normalized), 2), 2)
    strategy, noise_std = scaled(base, 1e-90)
    made = stream(strategy, [(50,)], noise_std)
    assert departure(take(made), base, white(made, 12)) < 1e-5


@pytest.mark.parametrize("options", [{"lookahead": 1}, {"lookahead": 50}, {}])
def test_the_check_takes_the_streams_own_way(options):
    strategy, noise_std = scaled(Toeplitz.square_root(40, 9), 1e-120)
    made = stream(strategy, [(30,)], noise_std, **options)
    assert departure(take(made), Toeplitz.square_root(40, 9), white(made, 40)) < 1e-5
    inverse, noise_std = scaled(BandedInverse.square_root(5, 40), 1e-120)
    made = stream(inverse, [(30,)], noise_std, regenerate=True)
    assert departure(take(made), BandedInverse.square_root(5, 40), white(made, 40)) < 1e-5


def test_a_refused_run_leaves_nothing_behind(tmp_path):
    strategy = Banded(Toeplitz([1.0, 0.5], 12).columns() * np.logspace(-40, 40, 12)[:, None])
    plan = plan_for(strategy, noise_std=1e41)
    with pytest.raises(ap.Refused, match="float32"):
        ap.Run.open(plan, tmp_path / "run", leaves=[(3,)], examples=40)
    assert not (tmp_path / "run").exists()
    ap.Run.open(plan, tmp_path / "run", leaves=[(3,)], examples=40, dtype="float64").close()


def test_a_stream_is_extended_at_its_scale_or_refused():
    strategy, noise_std = scaled(Toeplitz([1.0, 0.5], 8), 1e60)
    made = NoiseStream(Frozen(strategy, noise_std), [(9,)], SECRET)
    first = take(made)
    made.extend(Frozen(replace(strategy, steps=14), noise_std))
    longer = Toeplitz([1.0, 0.5], 14)
    assert departure(np.concatenate([first, take(made)]), longer, white(made, 14)) < 1e-5
    growing = NoiseStream(Frozen(Toeplitz([1.0, 2.0], 8)), [(9,)], SECRET)
    with pytest.raises(ap.Refused, match="ill-conditioned"):
        growing.extend(Frozen(Toeplitz([1.0, 2.0], 60)))


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170, 1e300])
@pytest.mark.parametrize("participation", [ap.SingleParticipation(), ap.MinSeparation(10), ap.FixedEpochs(4, 10)])
def test_a_sensitivity_beyond_floating_point_is_refused(scale, participation):
    strategy = Toeplitz(Toeplitz.square_root(40, 20).coefficients * scale, 40)
    with pytest.raises(ap.InvalidArgument, match="scale"):
        ap.sensitivity(strategy, participation)
