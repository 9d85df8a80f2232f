"""Sealed files: encrypted, authenticated, whole or not there, and written without a second copy in memory."""

import os
import tracemalloc

import numpy as np
import pytest

from antiphase._errors import Corrupted, InvalidArgument
from antiphase._sealed import Kind, read_sealed, write_sealed
from antiphase._secret import Secret

SECRET = Secret.insecure(5)
KIND = Kind("test state", b"antiphase test state\n", ("test",), "secret", "none")


def loaded(path, like, kind=KIND, secret=SECRET):
    arrays = [np.zeros_like(array) for array in like]
    header = read_sealed(path, kind, secret, lambda header: arrays)
    return header, arrays


def test_arrays_and_header_come_back(tmp_path):
    rng = np.random.default_rng(1)
    for arrays in ([], [rng.random(3)], [rng.random((5, 2)), np.arange(7, dtype=np.int8), rng.random(300_000)]):
        write_sealed(tmp_path / "state", KIND, SECRET, {"step": 4}, iter(arrays))
        header, found = loaded(tmp_path / "state", arrays)
        assert header["step"] == 4
        assert [array.tobytes() for array in found] == [array.tobytes() for array in arrays]
        assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_the_body_is_aes_in_counter_mode_under_a_key_of_its_own(tmp_path):
    """Decrypted here from the description alone."""
    import json

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    array = np.arange(1000.0)
    write_sealed(tmp_path / "state", KIND, SECRET, {}, [array])
    data = (tmp_path / "state").read_bytes()
    start = len(KIND.magic) + 8
    stop = start + int.from_bytes(data[len(KIND.magic) : start], "big")
    key = SECRET.derive("test", "encryption", json.loads(data[start:stop])["nonce"])
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).decryptor()
    assert cipher.update(data[stop + 32 : -32]) == array.tobytes()
    assert array[:4].tobytes() not in data


def test_every_changed_or_missing_byte_is_noticed(tmp_path):
    array = np.arange(9.0)
    write_sealed(tmp_path / "state", KIND, SECRET, {"step": 4}, [array])
    data = (tmp_path / "state").read_bytes()
    for i in range(len(data)):
        for wrong in (data[:i], data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]):
            (tmp_path / "state").write_bytes(wrong)
            with pytest.raises(Corrupted, match="test state"):
                loaded(tmp_path / "state", [array])


def test_another_kind_or_secret_is_refused(tmp_path):
    array = np.arange(9.0)
    write_sealed(tmp_path / "state", KIND, SECRET, {}, [array])
    others = [
        (Kind("x", b"antiphase other state\n", ("test",), "secret", ""), SECRET),
        (Kind("x", KIND.magic, ("test", "run b"), "secret", ""), SECRET),
        (KIND, Secret.insecure(6)),
    ]
    for kind, secret in others:
        with pytest.raises(Corrupted):
            loaded(tmp_path / "state", [array], kind, secret)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Corrupted, match="named pipe"):
        loaded(tmp_path / "pipe", [])
    with pytest.raises(InvalidArgument, match="cannot be read"):
        loaded(tmp_path / "none", [])


def test_large_arrays_are_not_copied(tmp_path):
    size = 16 << 20

    def arrays():
        for _ in range(4):
            yield np.ones(size // 8)

    tracemalloc.start()
    try:
        write_sealed(tmp_path / "state", KIND, SECRET, {}, arrays())
        assert tracemalloc.get_traced_memory()[1] < 2.5 * size  # one array, the next one, and pieces
        held = [np.empty(size // 8) for _ in range(4)]
        tracemalloc.reset_peak()
        read_sealed(tmp_path / "state", KIND, SECRET, lambda header: held)
        assert tracemalloc.get_traced_memory()[1] < 4.5 * size
    finally:
        tracemalloc.stop()
    assert all((array == 1.0).all() for array in held)
