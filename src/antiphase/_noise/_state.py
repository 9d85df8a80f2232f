"""The file a stream is saved in: whole or not there, owner-only, encrypted and authenticated.

    magic | header length | header (JSON) | its HMAC | state, AES-256-CTR | HMAC over all that comes before

Both HMAC-SHA256 keys and the cipher key come from the secret; the cipher key also from a nonce in the header, fresh
in every file. The header is read after its HMAC has been checked, the state is used after the last one has. The
state can be used to subtract noise, so it is never on disk in the clear; the header tells step and shapes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import BINARY, OWNER_ONLY, regular_target, sync_directory
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._noise._source import counter_mode
from antiphase._secret import Secret

MAGIC = b"antiphase noise state, version 1\n"
LENGTH = 8
MAC = hashlib.sha256().digest_size
LARGEST_HEADER = 1 << 26
PIECE = 1 << 20
Header = dict[str, Any]


def write_state(path: Path, header: Header, state: NDArray[Any], secret: Secret) -> None:
    """Replace `path` so that a crash at any instant leaves the old file or the new one."""
    path = regular_target(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, OWNER_ONLY)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _write(file, header, state, secret)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise InvalidArgument(
            f"The noise state cannot be written to {path}: {error.strerror}.",
            hint="choose a directory you can write to",
        ) from error


def read_state(path: Path, secret: Secret, prepare: Callable[[Header], NDArray[Any]]) -> Header:
    """Give the header to `prepare`, which returns the array to read the state into, and read it.

    Raises `Corrupted` where the file was cut short, changed or written with another secret; the array must not be
    used then.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path, secret, prepare)
    except OSError as error:
        raise InvalidArgument(
            f"The noise state {path} cannot be read: {error.strerror}.", hint="check the path"
        ) from error


def _write(file: BinaryIO, header: Header, state: NDArray[Any], secret: Secret) -> None:
    nonce = secrets.token_hex(16)
    text = json.dumps({**header, "nonce": nonce}, allow_nan=False).encode()
    seal = _seal(secret)
    file.write(_sealed(seal, MAGIC + len(text).to_bytes(LENGTH, "big") + text))
    file.write(seal.digest())
    seal.update(seal.digest())
    cipher, data = _cipher(secret, nonce), _bytes_of(state)
    for start in range(0, len(data), PIECE):
        file.write(_sealed(seal, cipher.update(data[start : start + PIECE])))
    file.write(seal.digest())


def _read(file: BinaryIO, path: Path, secret: Secret, prepare: Callable[[Header], NDArray[Any]]) -> Header:
    seal = _seal(secret)
    head = _sealed(seal, file.read(len(MAGIC) + LENGTH))
    if head[: len(MAGIC)] != MAGIC:
        raise _corrupted(path, "it is no noise state, or one of another version")
    length = int.from_bytes(head[len(MAGIC) :], "big")
    text = _sealed(seal, file.read(min(length, LARGEST_HEADER)))
    _check_seal(seal, file, path)
    header: Header = json.loads(text)  # authentic from here on
    state = prepare(header)
    cipher, data = _cipher(secret, header["nonce"]), _bytes_of(state)
    for start in range(0, len(data), PIECE):
        encrypted = _sealed(seal, file.read(min(PIECE, len(data) - start)))
        data[start : start + len(encrypted)] = np.frombuffer(cipher.update(encrypted), dtype=np.uint8)
    _check_seal(seal, file, path)
    if file.read(1):
        raise _corrupted(path, "something follows its end")
    return header


def check_fits(path: Path, name: str, wanted: object, found: object) -> None:
    """Refuse a file that belongs to something else; None wants nothing in particular."""
    if wanted is not None and wanted != found:
        raise _corrupted(path, f"it belongs to another {name} ({found}, not {wanted})")


def _seal(secret: Secret) -> hmac.HMAC:
    return hmac.new(secret.derive("noise state", "authentication"), digestmod="sha256")


def _sealed(seal: hmac.HMAC, data: bytes) -> bytes:
    seal.update(data)
    return data


def _check_seal(seal: hmac.HMAC, file: BinaryIO, path: Path) -> None:
    expected = seal.digest()
    if not hmac.compare_digest(expected, file.read(MAC)):
        raise _corrupted(path, "it was cut short, changed, or written with another secret")
    seal.update(expected)


def _cipher(secret: Secret, nonce: str) -> Any:
    return counter_mode(secret.derive("noise state", "encryption", nonce))


def _bytes_of(state: NDArray[Any]) -> NDArray[np.uint8]:
    return state.reshape(-1).view(np.uint8)


def _corrupted(path: Path, why: str) -> Corrupted:
    return Corrupted(
        f"The noise state {path} cannot be used: {why}.",
        hint="restore it from a backup, or replay with NoiseStream(..., start_step=...), which needs no file",
    )
