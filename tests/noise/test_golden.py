"""The noise of a fixed secret, frozen: a change of any bit would break runs that are under way.

`python -m tests.noise.test_golden` writes the file anew; do that only together with a new format version.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from antiphase._noise import Leaf, NoiseStream
from antiphase._secret import Secret
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Stamped, Toeplitz, Tree
from tests.noise.streams import flat

FILE = Path(__file__).with_name("golden.json")
STRATEGIES = {
    "identity": Identity(4),
    "blt": BLT([0.9, 0.5], [0.2, 0.1], 4),
    "toeplitz": Toeplitz([1.0, 0.5, 0.25], 4),
    "toeplitz-normalized": Toeplitz([1.0, 0.5, 0.25], 4, column_normalized=True),
    "banded": Banded([[1.0, 0.5], [2.0, 0.25], [1.5, -0.5], [1.0, 0.0]]),
    "dense": Dense([[2.0, 0, 0, 0], [1.0, 1.0, 0, 0], [0.5, 0.5, 1.0, 0], [0.25, 0.5, 0.75, 2.0]]),
    "banded-inverse": BandedInverse([1.0, -0.5, -0.125], 4),
    "tree": Tree(4),
    "stamped": Stamped(Toeplitz([1.0, 0.5], 2), 2),
}
LEAVES = {"kernel": Leaf((2, 3)), "bias": Leaf((100,), ((97, 100),)), "scale": Leaf(())}


class Frozen:
    """A plan whose fingerprint does not follow the library's own."""

    noise_std = 0.75
    fingerprint = "golden"

    def __init__(self, strategy):
        self.strategy = strategy


def noise(name, dtype):
    """Four steps as little-endian bytes in hexadecimal, one string a step."""
    stream = NoiseStream(Frozen(STRATEGIES[name]), LEAVES, Secret.insecure(42), "golden run", dtype=dtype)
    return [flat(stream.next()).astype(np.dtype(dtype).newbyteorder("<")).tobytes().hex() for _ in range(4)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_stream_of_a_fixed_secret_is_frozen(name, dtype):
    assert noise(name, dtype) == json.loads(FILE.read_text())[name][dtype]


if __name__ == "__main__":
    golden = {name: {dtype: noise(name, dtype) for dtype in ("float32", "float64")} for name in STRATEGIES}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
