"""Lattice noise streams: against rational arithmetic, statistics, sharding, saving and resuming, and refusals."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase._lattice import add_exactly, integer_form
from antiphase._lattice.range import END_OF_TAIL, largest_number
from antiphase._lattice.rounding import rounding_factor
from antiphase.strategies import (
    BLT,
    Banded,
    BandedInverse,
    Dense,
    Fourier,
    Identity,
    Stamped,
    Strategy,
    Toeplitz,
    Tree,
)
from tests.noise.streams import flat, take

SECRET = ap.Secret.insecure(11)
GOLDEN = Path(__file__).with_name("golden_lattice.json")
STRATEGIES: dict[str, Strategy] = {
    "identity": Identity(12),
    "toeplitz": Toeplitz([2.0, 1.1, 0.7, -0.4], 24),
    "toeplitz-long": Toeplitz.square_root(24),
    "banded": Banded(Toeplitz([1.0, 0.5, -0.25], 20).columns() * np.linspace(1, 1, 20)[:, None]),
    "blt": BLT([0.97, 0.5], [0.3, 0.2], 30),
    "blt-signed": BLT([0.95, 0.9], [1.5, -1.2], 30),
    "banded-inverse": BandedInverse([1.0, -0.5, -0.125], 20),
    "stamped-toeplitz": Stamped(Toeplitz([1.0, 0.6, 0.3], 6), 3),
    "stamped-blt": Stamped(BLT([0.9], [0.5], 5), 4),
}


def on_lattice(strategy, noise_std=3.0, entries=200, participation=None, **changes):
    rounded, promise = ap.rounded_strategy(strategy), participation or ap.MinSeparation(4)
    lattice = replace(ap.choose_lattice(rounded, promise, noise_std, entries, 0.7), **changes)
    return ap.Mechanism(rounded, promise, noise_std, lattice=lattice)


def stream(mechanism, leaves=((150,), (5, 10)), **options):
    return ap.NoiseStream(mechanism, leaves, SECRET, "lattice", **options)


def reference(mechanism, z):
    """The noise of one coordinate in rational arithmetic, from the definition in docs/lattice-noise.md."""
    strategy, half = mechanism.strategy, Fraction(1, 2)
    if isinstance(strategy, Stamped):
        block = replace(mechanism, strategy=strategy.strategy)
        size = strategy.strategy.steps
        return [y for start in range(0, len(z), size) for y in reference(block, z[start : start + size])]
    out: list[int] = []
    if isinstance(strategy, BLT):
        unit = 2**mechanism.lattice.fraction_bits
        decay, scale = [Fraction(x) for x in strategy.decay], [Fraction(x) for x in strategy.scale]
        buffers = [Fraction(0)] * len(decay)
        for draw in z:
            y = draw - math.floor(sum(s * b for s, b in zip(scale, buffers, strict=True)) + half)
            buffers = [Fraction(math.floor(d * b * unit + half), unit) + y for d, b in zip(decay, buffers, strict=True)]
            out.append(y)
    elif isinstance(strategy, BandedInverse):
        c = [Fraction(x) for x in strategy.coefficients]
        for t, draw in enumerate(z):
            past = sum(c[r] * z[t - r] for r in range(1, min(t + 1, len(c))))
            out.append(draw - math.floor(-past + half))
    else:
        matrix = strategy.encoder()
        for t, draw in enumerate(z):
            past = sum(Fraction(matrix[t, s]) * out[s] for s in range(t))
            out.append(draw - math.floor(past + half))
    return out


@pytest.mark.parametrize("clip_norm", [1e-290, 1e300])
def test_clipping_norms_without_a_grid_are_named(clip_norm):
    with pytest.raises(ap.NotProved, match="clipping norm of 1e"):
        ap.choose_lattice(Identity(4), ap.SingleParticipation(), 1.0, 10, clip_norm)


def with_poles(count):
    """A `BandedInverse` whose C has poles near 1, and so large entries."""
    coefficients = np.array([1.0])
    for i in range(count):
        coefficients = np.convolve(coefficients, [1.0, -(1.0 - i / 1000)])
    return ap.rounded_strategy(BandedInverse(coefficients, 600))


def test_a_column_of_a_banded_inverse_that_float64_cannot_compute_is_refused():
    # In float64, even after multiplication by 1.001, its sum of 7e16 is 0.3 % too small.
    with pytest.raises(ap.NotProved, match="cannot be bounded"):
        ap.Mechanism(with_poles(8), ap.SingleParticipation(), 1.0, lattice=ap.Lattice(-46, 2**46, 1))


@pytest.mark.parametrize("poles", [2, 4, 5])
def test_rounding_errors_of_the_column_of_a_banded_inverse_are_covered(poles):
    strategy = with_poles(poles)
    found = rounding_factor(integer_form(strategy), 0)
    tail, column = [Fraction(c) for c in strategy.coefficients[1:].tolist()], [1 << 200]
    for _ in range(599):  # in fixed point with 200 bits
        column.append(-math.floor(sum(c * past for c, past in zip(tail, reversed(column), strict=False))))
    assert found >= Fraction(sum(map(abs, column)), 1 << 200)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("noise_std", [0.4, 500.0])
def test_noise_equals_its_definition(name, noise_std):
    mechanism = on_lattice(STRATEGIES[name], noise_std)
    made = stream(mechanism)
    z = np.stack([flat(made.white(row)) for row in range(made.steps)])
    noise = take(made)
    assert noise.dtype == np.int64
    for i in (0, 1, 127, 128, 149, 150, 199):
        assert noise[:, i].tolist() == reference(mechanism, z[:, i].tolist())


@pytest.mark.parametrize("name", ["toeplitz", "blt-signed", "banded-inverse"])
def test_noise_equals_its_definition_on_coarse_grids(name):
    """With a tiny sigma, rounding matters in every step."""
    mechanism = on_lattice(STRATEGIES[name], 3.0, norm=2, exponent=0)
    assert mechanism.lattice.sigma(3.0) == 6
    made = stream(mechanism)
    z = np.stack([flat(made.white(row)) for row in range(made.steps)])
    noise = take(made)
    for i in range(0, 200, 13):
        assert noise[:, i].tolist() == reference(mechanism, z[:, i].tolist())


@pytest.mark.parametrize("name", STRATEGIES)
def test_c_times_the_noise_is_white(name):
    """C y = z up to rounding: at most 1 per step, in units of the grid."""
    mechanism = on_lattice(STRATEGIES[name])
    made = stream(mechanism)
    z = np.stack([flat(made.white(row)) for row in range(made.steps)]).astype(np.float64)
    back = mechanism.strategy.multiply(take(made).astype(np.float64))
    limit = 2.0 if not isinstance(mechanism.strategy, BandedInverse) else 10.0
    assert np.abs(back - z).max() < limit + 1e-12 * np.abs(z).max() * made.steps


@pytest.mark.parametrize("name", ["toeplitz", "blt", "banded-inverse", "stamped-toeplitz", "stamped-blt", "identity"])
def test_errors_are_the_planned_ones(name):
    """Utility: the error of prefix sums of the lattice noise is that of the strategy, within statistics."""
    mechanism = on_lattice(STRATEGIES[name], entries=20_000)
    sums = take(stream(mechanism, [(20_000,)])).cumsum(axis=0) / mechanism.lattice.norm
    planned = mechanism.noise_std**2 * ap.error(mechanism.strategy, ap.PrefixSum()).per_step
    found = (sums**2).mean(axis=1)
    assert np.abs(found / planned - 1.0).max() < 6 * math.sqrt(2 / 20_000)


@pytest.mark.parametrize("name", STRATEGIES)
def test_shards_threads_saving_and_replaying_change_no_bit(name, tmp_path):
    mechanism = on_lattice(STRATEGIES[name], entries=40_000)
    leaves = {"a": ap.Leaf((200, 100)), "b": ap.Leaf((333,))}
    whole = take(stream(mechanism, leaves, threads=1))
    assert np.array_equal(take(stream(mechanism, leaves, threads=2)), whole)
    part = {"a": ap.Leaf((200, 100), ((30, 170), (17, 58))), "b": ap.Leaf((333,), ((100, 101),))}
    inside = np.concatenate(
        [whole[:, :20_000].reshape(-1, 200, 100)[:, 30:170, 17:58].reshape(len(whole), -1), whole[:, 20_100:20_101]],
        axis=1,
    )
    assert np.array_equal(take(stream(mechanism, part)), inside)
    half = len(whole) // 2
    first = stream(mechanism, leaves)
    take(first, half)
    first.save(tmp_path / "state")
    resumed = ap.NoiseStream.load(tmp_path / "state", mechanism, SECRET)
    assert resumed.dtype == np.int64
    assert np.array_equal(take(resumed), whole[half:])
    assert np.array_equal(take(stream(mechanism, leaves, start_step=half)), whole[half:])


def test_the_state_is_encrypted(tmp_path):
    made = stream(on_lattice(STRATEGIES["blt"]))
    noise = flat(made.next())
    made.save(tmp_path / "state")
    held = (tmp_path / "state").read_bytes()
    assert noise[:4].tobytes() not in held
    assert made.state_bytes == 2 * 256 * 8  # two buffers of int64, in strips of 128 entries
    with pytest.raises(ap.Corrupted):
        ap.NoiseStream.load(tmp_path / "state", on_lattice(STRATEGIES["blt"], norm=5), SECRET)


@pytest.mark.parametrize("name", ["identity", "toeplitz", "blt", "banded-inverse"])
def test_extended_streams_continue(name):
    short, n = on_lattice(STRATEGIES[name]), STRATEGIES[name].steps
    longer = replace(short, strategy=replace(short.strategy, steps=n + 5))
    made = stream(short)
    before = take(made)
    made.extend(longer)
    after = take(made)
    whole = ap.NoiseStream(longer, ((150,), (5, 10)), SECRET, "lattice", first=short)
    assert np.array_equal(take(whole), np.concatenate([before, after]))
    with pytest.raises(ap.Refused):
        stream(short).extend(replace(longer, lattice=replace(short.lattice, norm=77)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_noise_keeps_its_bits(name):
    assert golden(name) == json.loads(GOLDEN.read_text())[name]


class Frozen:
    """A plan whose fingerprint does not follow the library's own."""

    noise_std = 0.75
    fingerprint = "golden"

    def __init__(self, strategy):
        self.strategy = ap.rounded_strategy(strategy)
        self.lattice = ap.Lattice(-40, 2**40, 6, 6 if "blt" in str(type(self.strategy.block)).lower() else 0)


def golden(name):
    made = ap.NoiseStream(Frozen(STRATEGIES[name]), [(2, 3)], SECRET, "golden run")
    return take(made, 5).tolist()


@pytest.mark.parametrize(
    "strategy",
    [
        Tree(8),
        Fourier(8),
        Stamped(Tree(4), 2),
        Toeplitz([1.0, 0.5], 4, column_normalized=True),
        Banded([[2.0, 1.0], [3.0, 0.0]]),
        Dense([[1.0, 0.5], [0.0, 1.0]]),
    ],
)
def test_other_strategies_are_refused_by_name(strategy):
    with pytest.raises(ap.NotProved, match=type(strategy).__name__) as caught:
        ap.rounded_strategy(strategy)
    assert caught.value.hint


class Thirds(Strategy):
    """A strategy that `rounded_strategy` does not know: it has neither `rescaled` nor a case there."""

    steps = 4

    def encoding_stream(self):
        return Toeplitz([1.0, 1 / 3], 4).encoding_stream()

    def recursion(self):
        return Toeplitz([1.0, 1 / 3], 4).recursion()


def test_a_strategy_that_cannot_be_rounded_is_not_referred_to_rounding_only():
    with pytest.raises(ap.NotProved, match="coefficients of this Thirds") as caught:
        ap.rounded_strategy(Thirds())
    assert "lattice=False" in caught.value.hint


def test_coefficients_that_are_not_on_the_grid_are_refused():
    with pytest.raises(ap.NotProved, match="multiples of 2"):
        ap.Mechanism(Toeplitz([1.0, 1 / 3], 4), ap.EveryStep(), 1.0, lattice=ap.Lattice(-32, 2**32, 10))
    with pytest.raises(ap.NotProved, match="ones on its diagonal"):
        ap.Mechanism(Toeplitz([2.0, 1.0], 4), ap.EveryStep(), 1.0, lattice=ap.Lattice(-32, 2**32, 10))


@pytest.mark.filterwarnings("error")
def test_enormous_coefficients_are_refused_without_a_warning():
    with pytest.raises(ap.NotProved, match="multiples of 2"):
        ap.Mechanism(Toeplitz([1.0, 1e300], 4), ap.EveryStep(), 1.0, lattice=ap.Lattice(-32, 2**32, 10))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "strategy",
    [Toeplitz([1.0, -1e308], 5), Toeplitz([1e-300, 1e300], 5), BandedInverse([1.0, 1e308], 5), BLT([0.9], [1e308], 5)],
    ids=str,
)
def test_enormous_coefficients_are_not_rounded_and_give_no_warning(strategy):
    with pytest.raises(ap.NotProved, match="multiples of 2"):
        ap.rounded_strategy(strategy)


def test_noise_that_does_not_fit_is_refused():
    growing = Toeplitz([1.0, 2.0], 40)  # the inverse doubles in every step
    with pytest.raises(ap.NotProved, match="No grid"):
        ap.choose_lattice(growing, ap.EveryStep(), 1.0, 1000)
    mechanism = ap.Mechanism(growing, ap.EveryStep(), 1.0, lattice=ap.Lattice(-32, 2**32, 1000))
    with pytest.raises(ap.Refused, match="64-bit integers"):
        stream(mechanism, [(10,)])
    blt = ap.rounded_strategy(BLT([1.0], [0.001], 1000))
    with pytest.raises(ap.Refused, match="64-bit integers"):
        stream(ap.Mechanism(blt, ap.EveryStep(), 1.0, lattice=ap.Lattice(-32, 2**32, 1000, 30)), [(10,)])


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_stated_range_covers_the_row_norms(name):
    """The largest number is at least END_OF_TAIL times the standard deviation of every output and buffer."""
    strategy = ap.rounded_strategy(STRATEGIES[name])
    norms = np.linalg.norm(strategy.noising(), axis=1)
    assert largest_number(integer_form(strategy), 1000, 0) >= END_OF_TAIL * 1000 * norms.max()
    if isinstance(strategy, BLT):
        powers = strategy.decay[:, None, None] ** np.clip(np.subtract.outer(np.arange(30), np.arange(30)), 0, None)
        buffers = (powers * np.tril(np.ones((30, 30)))) @ strategy.noising()
        assert (
            largest_number(integer_form(strategy), 1000, 3)
            >= 8 * END_OF_TAIL * 1000 * np.sqrt((buffers**2).sum(axis=2)).max()
        )


def test_wrong_arguments_are_refused():
    mechanism = on_lattice(STRATEGIES["toeplitz"])
    with pytest.raises(ap.InvalidArgument, match="int64 for lattice noise"):
        stream(mechanism, dtype="float32")
    with pytest.raises(ap.InvalidArgument, match="accounts for 200 parameters"):
        stream(mechanism, [(201,)])
    with pytest.raises(ap.InvalidArgument, match="lookahead"):
        stream(mechanism, lookahead=2)
    with pytest.raises(ap.InvalidArgument, match="The 'regenerate' parameter"):
        stream(mechanism, regenerate=True)
    with pytest.raises(ap.InvalidArgument, match="norm"):
        ap.Lattice(0, 2**50, 1)


class TestContributions:
    lattice = ap.Lattice(exponent=-20, norm=10**6, entries=10**6)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    @pytest.mark.parametrize("size", [1, 3, 1000, 100_000])
    @pytest.mark.parametrize("scale", [1e-4, 0.9, 1.0, 1e4])
    def test_norms_never_exceed_the_limit(self, dtype, size, scale):
        random = np.random.default_rng(size)
        for _ in range(3):
            given = (scale * random.standard_normal(size)).astype(dtype)
            (made,) = self.lattice.contribution([given])
            assert sum(v * v for v in made.tolist()) <= self.lattice.norm**2
            wide = given.astype(np.float64)
            kept = wide * min(1.0, self.lattice.clip_norm / max(np.linalg.norm(wide), 1e-300))
            assert np.abs(made * self.lattice.grid - kept).max() <= self.lattice.grid * (1 + 1e-3)
            assert (np.abs(made) * self.lattice.grid <= np.abs(wide) * (1 + 1e-12)).all()  # towards zero

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_non_finite_contributions_become_zero(self, bad):
        made = self.lattice.contribution([np.array([1.0, 2.0]), np.array([bad])])
        assert not any(array.any() for array in made)

    @pytest.mark.parametrize("given", [[1e300, 1e300], [5e-324, 0.0], [0.0, 0.0], [1.7e308, -1.7e308]])
    def test_extreme_contributions(self, given):
        (made,) = self.lattice.contribution([np.array(given)])
        assert sum(v * v for v in made.tolist()) <= self.lattice.norm**2
        if abs(given[0]) > 1e10:
            assert np.abs(made).min() > 0.7 * self.lattice.norm

    def test_a_vector_of_exactly_the_norm_is_kept(self):
        (made,) = self.lattice.contribution([np.array([0.6, -0.8]) * self.lattice.clip_norm])
        assert np.abs(np.abs(made) - [600_000, 800_000]).max() <= 1

    def test_sums_are_exact_and_masked(self):
        random = np.random.default_rng(1)
        batch = [random.standard_normal((5, 3)), random.standard_normal((5, 2, 2))]
        mask = np.array([True, False, True, True, False])
        found = self.lattice.clipped_sum(batch, mask)
        for leaf in range(2):
            each = [self.lattice.contribution([b[i] for b in batch])[leaf] for i in (0, 2, 3)]
            assert np.array_equal(found[leaf], sum(each))

    def test_sums_wrap_around_without_an_error(self):
        """An error would tell large sums from small ones, which no proof covers; 2^64 is a multiple of every bit."""
        total = [np.array([2**62, -(2**63), 5])]
        add_exactly(total, [np.array([2**62, -1, -7])])
        assert total[0].tolist() == [-(2**63), 2**63 - 1, -2]

    def test_scalars_keep_their_shape(self):
        made = self.lattice.contribution([np.array(0.5), np.float32(0.25), 0.125, np.ones((0, 3))])
        assert [array.shape for array in made] == [(), (), (), (0, 3)]
        (found,) = self.lattice.clipped_sum([np.full(5, 0.1)])
        assert found.shape == ()
        assert int(found) == 5 * math.floor(0.1 * 2**20)

    @pytest.mark.parametrize(
        "given",
        [
            np.array([10**400], dtype=object),
            np.array([1j]),
            np.array(["1"]),
            np.array(["2020"], dtype="M8[Y]"),
            np.ma.MaskedArray([1.0], [True]),
        ],
    )
    def test_other_dtypes_are_refused_whatever_their_values(self, given):
        with pytest.raises(ap.InvalidArgument, match="real numbers"):
            self.lattice.contribution([given])

    @pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_, np.float16])
    def test_other_real_numbers_are_converted(self, dtype):
        (made,) = ap.Lattice(-4, 100, 2).contribution([np.array([1, 0], dtype=dtype)])
        assert made.tolist() == [16, 0]

    @pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="long doubles are float64 on this machine")
    @pytest.mark.filterwarnings("error")
    def test_long_doubles_that_are_too_large_become_zero_without_a_warning(self):
        lattice = ap.Lattice(-20, 1 << 40, 4)
        given = np.array([1.0, np.longdouble(np.finfo(np.longdouble).max)], dtype=np.longdouble)
        assert lattice.contribution([given])[0].tolist() == [0, 0]
        totals = [np.zeros(2, np.int64)]
        lattice.add_contribution(totals, [given])
        assert totals[0].tolist() == [0, 0]

    def test_lengths_are_checked(self):
        for arrays, mask in (
            ([np.ones((5, 2))], [True, True]),
            ([np.ones((5, 2))], [True] * 6),
            ([np.ones((5, 2))], np.ones((5, 1), dtype=bool)),
            ([np.ones((5, 2)), np.ones((4, 2))], None),
            ([np.ones(())], None),
            ([], None),
        ):
            with pytest.raises(ap.InvalidArgument, match=r"number of examples|one for each example"):
                self.lattice.clipped_sum(arrays, mask)

    def test_wrong_dtypes_are_refused(self):
        with pytest.raises(ap.InvalidArgument, match="int64"):
            add_exactly([np.zeros(3)], [np.zeros(3, dtype=np.int64)])
        with pytest.raises(ap.InvalidArgument, match="int64"):
            add_exactly([np.zeros(3, dtype=np.int64)], [np.zeros(4, dtype=np.int64)])
        with pytest.raises(ap.InvalidArgument, match="int64"):
            add_exactly([np.zeros(3, dtype=np.int64)], [[1, 2, 3]])


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: golden(name) for name in STRATEGIES}) + "\n")
