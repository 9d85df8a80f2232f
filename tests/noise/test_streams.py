"""Every stream is noise_std N z of its own z, ends with its plan, and does not care how it is cut or threaded."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._noise import Leaf, NoiseStream
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.catalog import every_strategy, random_banded, random_lower
from tests.noise.streams import SECRET, TOLERANCE, Noisy, flat, stream, take, white

DTYPES = [np.float32, np.float64]
SIZES = (1, 5, 24)
SMALL = {f"{name}-{n}": strategy for n in SIZES for name, strategy in every_strategy(n)}
RNG = np.random.default_rng(3)
LONG = {
    "identity": Identity(5000),
    "blt": BLT.from_decays([0.9999, 0.97, 0.8, 0.3], [0.999, 0.9, 0.5, 0.1], 5000),
    "toeplitz": Toeplitz.square_root(5000, 24),
    "toeplitz-normalized": Toeplitz(Toeplitz.square_root(5000, 24).coefficients, 5000, column_normalized=True),
    "banded": Banded(Toeplitz.square_root(5000, 9).columns() * (0.5 + RNG.random((5000, 1)))),
    "banded-inverse": BandedInverse.square_root(9, 5000),
    "tree": Tree(5000),
    "stamped": Stamped(Tree(50), 100),
}


def relative_error(out, wanted):
    return np.abs(out - wanted).max() / max(np.abs(wanted).max(), 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL)
def test_a_stream_is_its_own_white_noise_correlated(name, dtype):
    strategy = SMALL[name]
    made = stream(strategy, noise_std=1.7, dtype=dtype)
    out, z = take(made), white(made, strategy.rows)
    assert out.dtype == dtype
    assert relative_error(out, 1.7 * strategy.noising() @ z) < TOLERANCE[dtype]


@pytest.mark.integration
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LONG)
def test_long_streams_do_not_drift(name, dtype):
    strategy = LONG[name]
    made = stream(strategy, [(3,)], noise_std=0.3, dtype=dtype, threads=1)
    out, z = take(made), white(made, strategy.rows)
    assert relative_error(out, 0.3 * strategy.solve(z)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dense_stream_over_many_blocks(dtype):
    strategy = Dense(np.tril(Toeplitz.square_root(600).encoder()))
    made = stream(strategy, [(40,)], dtype=dtype)
    out, z = take(made), white(made, 600)
    assert relative_error(out, strategy.solve(z)) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "name", ["identity-5", "toeplitz-24", "tree-online-5", "fourier-direct-5", "stamped-2-tree-24"]
)
def test_the_stream_ends_with_the_plan(name):
    made = stream(SMALL[name])
    take(made)
    for _ in range(2):
        with pytest.raises(ap.Refused, match=r"all .* steps"):
            made.next()
        with pytest.raises(ap.Refused, match=r"all .* steps"):
            made.add_to([np.zeros(leaf.shape, np.float32) for leaf in made.leaves.values()])
    assert made.step == made.steps


@pytest.mark.parametrize("name", SMALL)
def test_adding_in_place_is_next_and_addition(name):
    one, two = stream(SMALL[name], noise_std=2.0), stream(SMALL[name], noise_std=2.0)
    buffers = [np.full(leaf.shape, 0.25, np.float32) for leaf in one.leaves.values()]
    for _ in range(one.steps):
        wanted = [buffer + noise for buffer, noise in zip(buffers, one.next(), strict=True)]
        two.add_to(buffers)
        assert flat(buffers).tobytes() == flat(wanted).tobytes()


@pytest.mark.parametrize("name", SMALL)
def test_replay_gives_the_same_bits_from_any_step(name):
    strategy = SMALL[name]
    whole = take(stream(strategy))
    for t in sorted({0, min(1, strategy.steps - 1), strategy.steps // 2, strategy.steps - 1}):
        assert take(stream(strategy, start_step=t)).tobytes() == whole[t:].tobytes()
    with pytest.raises(ap.Refused):
        stream(strategy, start_step=strategy.steps).next()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lookahead", [1, 2, 3, 7, 60])
@pytest.mark.parametrize(
    "name", ["banded-24", "toeplitz-24", "toeplitz-full-24", "dense-lower-24", "stamped-3-dense-24"]
)
def test_lookahead_changes_no_bit(name, lookahead, dtype):
    wanted = take(stream(SMALL[name], dtype=dtype))
    assert take(stream(SMALL[name], dtype=dtype, lookahead=lookahead)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bands", [1, 2, 5, 24])
def test_old_noise_drawn_again_is_the_noise_that_would_have_been_kept(bands, dtype):
    strategy = BandedInverse.square_root(bands, 24)
    kept, drawn = stream(strategy, dtype=dtype), stream(strategy, dtype=dtype, regenerate=True)
    assert drawn.state_bytes == 0
    assert take(drawn).tobytes() == take(kept).tobytes()


FAMILIES = {
    "identity": Identity(6),
    "blt": BLT([0.9, 0.5], [0.2, 0.1], 6),
    "toeplitz": Toeplitz.square_root(6, 4),
    "dense": random_lower(np.random.default_rng(5), 6),
    "banded-inverse": BandedInverse.square_root(4, 6),
    "tree": Tree(6),
    "fourier": Fourier(6),
    "stamped": Stamped(Toeplitz.square_root(3), 2),
}


@st.composite
def shardings(draw):
    """A leaf's shape and a grid of cuts through it: uneven and empty pieces too."""
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    cuts = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    if draw(st.booleans()):
        cuts[0] = [0, *cuts[0]]
    return shape, cuts


@pytest.mark.parametrize("name", FAMILIES)
@given(
    sharding=shardings(),
    threads=st.integers(1, 4),
    lookahead=st.integers(1, 9),
    dtype=st.sampled_from(DTYPES),
    before=st.integers(0, 150),
)
@settings(max_examples=12, deadline=None)
def test_any_sharding_threads_and_lookahead_give_the_same_bits(name, sharding, threads, lookahead, dtype, before):
    shape, cuts = sharding
    whole = stream(FAMILIES[name], {"x": Leaf((before,)), "w": Leaf(shape)}, dtype=dtype, threads=1)
    noise = [whole.next()[1] for _ in range(3)]
    for corner in np.ndindex(*(len(c) - 1 for c in cuts)):
        region = tuple((c[i], c[i + 1]) for i, c in zip(corner, cuts, strict=True))
        leaves = {"w": Leaf(shape, region), "x": Leaf((before,))}
        shard = stream(FAMILIES[name], leaves, dtype=dtype, threads=threads, lookahead=lookahead)
        for wanted in noise:
            here = wanted[tuple(slice(*part) for part in region)]
            got = shard.next()[0]
            assert got.shape == here.shape
            assert got.tobytes() == here.tobytes()


@pytest.mark.parametrize("name", ["blt", "toeplitz", "tree", "fourier"])
def test_many_parts_on_many_threads(name):
    """More entries than one part, so that threads share a step."""
    leaves = [(300, 333), (7,), (50_001,)]
    one = take(stream(FAMILIES[name], leaves, threads=1))
    four = stream(FAMILIES[name], leaves, threads=4)
    assert take(four).tobytes() == one.tobytes()
    four.close()


def test_a_shard_holds_its_share_of_the_state():
    shape, strategy = (1024, 256), BLT([0.9, 0.5], [0.2, 0.1], 6)
    whole = stream(strategy, {"w": Leaf(shape)})
    quarter = stream(strategy, {"w": Leaf(shape, ((512, 1024), (128, 256)))})
    assert quarter.state_bytes == whole.state_bytes / 4


def test_noise_in_a_file_is_the_noise_in_memory(tmp_path):
    path = tmp_path / "noise"
    held, stored = stream(Fourier(9)), stream(Fourier(9), file=path)
    assert take(stored).tobytes() == take(held).tobytes()
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nobody else can read or change it


@pytest.mark.parametrize("leaves", [[], [(0,)], [()], {"a": Leaf((5,), ((2, 2),)), "b": Leaf((3,))}])
@pytest.mark.parametrize("name", FAMILIES)
def test_empty_and_tiny_leaves(name, leaves):
    made = stream(FAMILIES[name], leaves)
    assert [a.shape for a in made.next()] == [leaf.shape for leaf in made.leaves.values()]
    assert len(white(made, 1)[0]) == sum(leaf.size for leaf in made.leaves.values())


def test_an_interrupted_step_ends_the_stream(monkeypatch):
    """Half of the state has moved on: going on would correlate with the wrong past."""
    made = stream(BLT([0.9], [0.1], 10), [(100_000,)], threads=2)
    made.next()
    make = made._engine.correlator.make

    def fail(part, *rest):
        if part.start:
            raise KeyboardInterrupt
        make(part, *rest)

    monkeypatch.setattr(made._engine.correlator, "make", fail)
    with pytest.raises(KeyboardInterrupt):
        made.next()
    monkeypatch.undo()
    for act in (made.next, lambda: made.save("nowhere")):
        with pytest.raises(ap.Refused, match="interrupted"):
            act()


def test_a_fork_does_not_give_out_the_same_noise(monkeypatch):
    made = stream(Identity(3))
    made.next()
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(ap.Refused, match="fork"):
        made.next()


def test_a_step_with_wrong_buffers_is_not_taken():
    made = stream(Identity(3), [(4,), (2, 2)])
    good = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32)]
    read_only = np.zeros(4, np.float32)
    read_only.setflags(write=False)
    bad = [
        good[:1],
        good[::-1],
        [*good, good[0]],
        [[0.0] * 4, good[1]],
        [np.zeros(4, np.float16), good[1]],
        [np.zeros(4), good[1]],  # the low bits of float64 would have no noise
        [np.zeros(4, np.int64), good[1]],
        [np.zeros(8, np.float32)[::2], good[1]],
        [read_only, good[1]],
    ]
    for buffers in bad:
        with pytest.raises(ap.InvalidArgument, match="buffers"):
            made.add_to(buffers)
    shared = np.zeros(4, np.float32)
    with pytest.raises(ap.InvalidArgument, match="share memory"):
        stream(Identity(3), [(4,), (4,)]).add_to([shared, shared])
    assert made.step == 0
    assert not flat(good).any()


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": np.float16},
        {"dtype": "bfloat16"},
        {"dtype": np.int32},
        {"dtype": ">f4"},
        {"threads": 0},
        {"threads": 1.5},
        {"lookahead": 0},
        {"lookahead": True},
        {"source": "numpy"},
        {"regenerate": True},
        {"regenerate": 1},
        {"run_id": 5},
        {"start_step": -1},
        {"start_step": 4},
        {"start_step": 1.0},
    ],
    ids=str,
)
def test_bad_options_are_refused(options):
    with pytest.raises(ap.InvalidArgument, match=f"'{next(iter(options))}' parameter of NoiseStream"):
        stream(Identity(3), **options)


@pytest.mark.parametrize("plan", [None, 5, Identity(3), "plan"])
def test_only_plans_and_mechanisms_are_served(plan):
    with pytest.raises(ap.InvalidArgument, match="Plan or a Mechanism"):
        NoiseStream(plan, [(3,)], SECRET)


@pytest.mark.parametrize("row", [-1, 3, True, 0.0])
def test_white_noise_beyond_the_matrix_is_refused(row):
    with pytest.raises(ap.InvalidArgument, match="'row' parameter"):
        stream(Identity(3)).white(row)


def test_a_stream_is_neither_pickled_nor_copied():
    made = stream(Identity(3))
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ap.AntiphaseError, match="cannot be pickled"):
            duplicate(made)


def test_an_unknown_strategy_is_refused():
    class Unknown(ap.strategies.Recursion):
        steps = 3

    class Other(ap.strategies.Strategy):
        steps = 3
        memory_copies = 0
        encoding_stream = None

        def recursion(self):
            return Unknown()

    with pytest.raises(ap.InvalidArgument, match="There is no noise stream for the recursion Unknown"):
        NoiseStream(type("Plan", (), {"strategy": Other(), "noise_std": 1.0, "fingerprint": "x"})(), [(3,)], SECRET)


@pytest.mark.parametrize("noise_std", [0.0, 1e-40, 1e40])
def test_noise_that_is_no_noise_is_refused(noise_std):
    with pytest.raises(ap.Refused, match="standard deviation"):
        stream(Toeplitz.square_root(5), noise_std=noise_std)


def test_a_banded_strategy_with_one_diagonal_needs_no_state():
    strategy = random_banded(np.random.default_rng(0), 5, 1, signed=False)
    made = stream(strategy)
    assert made.state_bytes == 0
    assert relative_error(take(made), white(made, 5) / strategy.columns) < 1e-6


def test_settings_can_be_read_back():
    made = stream(Identity(3), [(4,)], run_id="seven", dtype=np.float64)
    assert (made.steps, made.step, made.run_id, made.dtype) == (3, 0, "seven", np.float64)
    assert made.leaves == {"0": Leaf((4,))}
    assert Noisy(Identity(3)).noise_std == 1.0
