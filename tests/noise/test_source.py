"""White noise by address: counter mode against published vectors, keys, and tiles however they are asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._noise.leaves import Leaf
from antiphase._noise.normals import Normals
from antiphase._noise.source import Aes, Simulation, leaf_keys
from antiphase._secret import Secret
from antiphase.strategies import Identity
from tests.noise.streams import SECRET, Noisy, flat, stream

DTYPES = [np.float32, np.float64]

# NIST SP 800-38A, F.5.5 CTR-AES256.Encrypt
KEY = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
COUNTER = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
PLAIN = (
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
CIPHER = (
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)


def test_counter_mode_gives_the_published_key_stream():
    words = np.empty(64, np.uint8)
    Aes([bytes.fromhex(KEY)]).words(0, int(COUNTER[:16], 16), int(COUNTER[16:], 16), words)
    assert (np.frombuffer(bytes.fromhex(PLAIN), np.uint8) ^ words).tobytes().hex() == CIPHER


def test_a_row_is_the_high_half_of_the_counter_and_a_block_the_low_half():
    source, keys = Aes([bytes(32)]), np.empty((4, 16), np.uint8)
    for out, (row, block) in zip(keys, [(1, 0), (0, 1), (1, 1), (2**63, 2**63)], strict=True):
        source.words(0, row, block, out)
    together = np.empty(32, np.uint8)
    source.words(0, 1, 0, together)
    assert len({key.tobytes() for key in keys}) == 4
    assert together.tobytes() == keys[0].tobytes() + keys[2].tobytes()


@pytest.mark.parametrize("maker", [Aes, Simulation])
@pytest.mark.parametrize("dtype", DTYPES)
@given(start=st.integers(0, 5000), size=st.integers(0, 700), cut=st.integers(0, 700), row=st.integers(0, 2**40))
@settings(max_examples=25, deadline=None)
def test_any_stretch_is_a_slice_of_the_whole(maker, dtype, start, size, cut, row):
    normals = Normals(maker([b"k" * 32]), np.dtype(dtype))
    whole, pieces = np.empty(start + size, dtype), np.empty(size, dtype)
    normals.fill(0, row, 0, whole)
    cut = min(cut, size)
    normals.fill(0, row, start, pieces[:cut])
    normals.fill(0, row, start + cut, pieces[cut:])
    assert pieces.tobytes() == whole[start:].tobytes()


@pytest.mark.parametrize("start", [0, 2**40 - 100, 2**59])
def test_long_stretches_and_far_addresses(start):
    """More entries than one call makes, from beyond 2^53 too."""
    normals = Normals(Aes([b"k" * 32]), np.dtype(np.float32))
    whole, half = np.empty(100_000, np.float32), np.empty(50_000, np.float32)
    normals.fill(0, 7, start, whole)
    normals.fill(0, 7, start + 50_000, half)
    assert half.tobytes() == whole[50_000:].tobytes()
    assert len(np.unique(whole)) > 99_000


@given(start=st.integers(0, 300), stride=st.integers(1, 400), width=st.integers(1, 200), rows=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_stretches_at_a_stride_are_those_of_the_whole(start, stride, width, rows):
    width = min(width, stride)
    normals = Normals(Aes([b"k" * 32]), np.dtype(np.float32))
    whole, out = np.empty(start + rows * stride, np.float32), np.empty((rows, width), np.float32)
    normals.fill(0, 3, 0, whole)
    normals.fill_rows(0, 3, start, stride, out)
    assert out.tobytes() == whole[start:].reshape(rows, stride)[:, :width].tobytes()


def test_no_word_of_a_row_is_used_twice():
    """Neighbouring tiles, rows and leaves: all words differ (a repeat of 64 bits by chance: below 1e-11)."""
    source, seen = Aes(leaf_keys(SECRET, ("a",), {"x": Leaf((9,)), "y": Leaf((9,))})), []
    for leaf in range(2):
        for row in range(40):
            words = np.empty(24 * 16 * 10, np.uint8)
            source.words(leaf, row, 0, words)
            seen.append(words.view(np.uint64))
    assert len(np.unique(np.concatenate(seen))) == 2 * 40 * 480


BASE = {"leaves": {"w": Leaf((64,))}, "secret": SECRET, "run_id": "a", "noise_std": 1.0, "dtype": np.float32}
CHANGES = [
    {"run_id": "b"},
    {"run_id": ""},
    {"secret": Secret.insecure(7)},
    {"noise_std": 1.01},
    {"leaves": {"v": Leaf((64,))}},
    {"leaves": {"w": Leaf((8, 8))}},
    {"source": "simulation"},
    {"steps": 4},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_whatever_differs_two_runs_share_no_noise(change):
    """The same 64 addresses under another run, plan, secret or leaf: unrelated numbers."""

    def draw(steps=3, **options):
        return flat(stream(Identity(steps), **options).white(0))

    first, second = draw(**BASE), draw(**{**BASE, **change})
    assert not np.isin(second, first).any()
    assert abs(first @ second) / 64 < 0.6  # 4.8 standard deviations


def test_float32_and_float64_streams_are_unrelated():
    first = flat(stream(Identity(1), [(4096,)]).next())
    second = flat(stream(Identity(1), [(4096,)], dtype=np.float64).next())
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 64


def test_a_list_of_shapes_is_short_for_numbered_names():
    named = stream(Identity(1), {"0": Leaf((3,)), "1": Leaf((2, 2))})
    assert flat(named.next()).tobytes() == flat(stream(Identity(1), [(3,), (2, 2)]).next()).tobytes()


@pytest.mark.parametrize(("source", "secret", "secure"), [
    ("aes", SECRET, False),
    ("aes", Secret.generate(), True),
    ("simulation", Secret.generate(), False),
])  # fmt: skip
def test_only_aes_with_a_generated_secret_counts_as_secure(source, secret, secure):
    assert stream(Identity(1), secret=secret, source=source).is_secure is secure


@pytest.mark.parametrize("secret", [42, b"x" * 32, None])
def test_only_a_secret_is_a_secret(secret):
    with pytest.raises(ap.AntiphaseError, match="must be a Secret"):
        ap_stream(secret)


def ap_stream(secret):
    from antiphase._noise import NoiseStream

    return NoiseStream(Noisy(Identity(1)), [(3,)], secret)
