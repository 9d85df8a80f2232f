"""Sealed files for secret state: encrypted, authenticated, readable by their owner only and written atomically.

A sealed file consists of these parts, in order:

    magic | header length | header (JSON) | HMAC | arrays, AES-256-CTR | HMAC

Each HMAC-SHA256 covers everything before it. The HMAC key and the cipher key are derived from the secret. The cipher
key also depends on a nonce in the header, and every file has a new nonce. The header is parsed only after its HMAC has
been checked, and the arrays are used only after the final HMAC has been checked. Anyone who has the arrays of a noise
state can subtract the noise, so arrays are never written to disk unencrypted. Without the secret, only the header can
be read, which contains the shapes.

Arrays are written and read in chunks of 1 MiB, so that no second copy of a model-sized array is held in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import open_file, replacing
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._secret import Secret

LENGTH = 8
MAC = hashlib.sha256().digest_size
LARGEST_HEADER = 1 << 26
CHUNK = 1 << 20
Header = dict[str, Any]
Prepare = Callable[[Header], Iterable[NDArray[Any]]]


@dataclass(frozen=True)
class Kind:
    """A kind of sealed file.

    Args:
        name: name of the kind, for error messages.
        magic: first bytes of the file, which identify kind and version.
        labels: arguments of `Secret.derive` for the keys of this kind.
        owner: what a file belongs to, for the error message "belongs to another <owner>".
        hint: hint of the error that is raised for an unusable file.
    """

    name: str
    magic: bytes
    labels: tuple[str, ...]
    owner: str
    hint: str

    def corrupted(self, path: Path, why: str) -> Corrupted:
        """Return the error for a file that cannot be used."""
        return Corrupted(f"The {self.name} {path} cannot be used: {why}.", hint=self.hint)


def write_sealed(path: Path, kind: Kind, secret: Secret, header: Header, arrays: Iterable[NDArray[Any]]) -> None:
    """Write a sealed file atomically: a crash at any time leaves either the old file or the new one."""
    try:
        with replacing(path) as file:
            _write(file, kind, secret, header, arrays)
    except OSError as error:
        raise InvalidArgument(
            f"The {kind.name} cannot be written to {path}: {error.strerror}.",
            hint="choose a directory that you can write to",
        ) from error
    finally:
        del arrays  # tracebacks may show local variables


def read_sealed(path: Path, kind: Kind, secret: Secret, prepare: Prepare) -> Header:
    """Read a sealed file: pass its header to `prepare`, fill the arrays that `prepare` returns, and return the header.

    Raises `Corrupted` if the file was truncated, changed or written with a different secret. In that case, do not use
    the arrays.
    """
    try:
        with os.fdopen(open_file(path, follow=True), "rb") as file:
            return _read(file, path, kind, secret, prepare)
    except OSError as error:
        raise InvalidArgument(
            f"The {kind.name} {path} cannot be read: {error.strerror}.", hint="check the path"
        ) from error


def _write(file: BinaryIO, kind: Kind, secret: Secret, header: Header, arrays: Iterable[NDArray[Any]]) -> None:
    nonce = secrets.token_hex(16)
    text = json.dumps({**header, "nonce": nonce}, allow_nan=False).encode()
    seal = _seal(kind, secret)
    file.write(_sealed(seal, kind.magic + len(text).to_bytes(LENGTH, "big") + text))
    file.write(seal.digest())
    seal.update(seal.digest())
    cipher = _cipher(kind, secret, nonce)
    data = array = None
    try:
        for array in arrays:
            data = _bytes_of(array)
            for start in range(0, len(data), CHUNK):
                file.write(_sealed(seal, cipher.update(data[start : start + CHUNK])))
        file.write(seal.digest())
    finally:
        del arrays, array, data  # tracebacks may show local variables


def _read(file: BinaryIO, path: Path, kind: Kind, secret: Secret, prepare: Prepare) -> Header:
    seal = _seal(kind, secret)
    head = _sealed(seal, file.read(len(kind.magic) + LENGTH))
    if head[: len(kind.magic)] != kind.magic:
        raise kind.corrupted(path, f"it was changed or truncated, or is not a {kind.name} of this version")
    length = int.from_bytes(head[len(kind.magic) :], "big")
    text = _sealed(seal, file.read(min(length, LARGEST_HEADER)))
    _check_seal(seal, file, path, kind)
    header: Header = json.loads(text)  # authentic, because `_check_seal` has passed
    cipher = _cipher(kind, secret, header["nonce"])
    data = array = None
    try:
        for array in prepare(header):
            data = _bytes_of(array)
            for start in range(0, len(data), CHUNK):
                encrypted = _sealed(seal, file.read(min(CHUNK, len(data) - start)))
                data[start : start + len(encrypted)] = np.frombuffer(cipher.update(encrypted), dtype=np.uint8)
        _check_seal(seal, file, path, kind)
        if file.read(1):
            raise kind.corrupted(path, "it was changed: there is extra data at the end")
        return header
    finally:
        del array, data  # tracebacks may show local variables


def _seal(kind: Kind, secret: Secret) -> hmac.HMAC:
    return hmac.new(secret.derive(*kind.labels, "authentication"), digestmod="sha256")


def _sealed(seal: hmac.HMAC, data: bytes) -> bytes:
    seal.update(data)
    return data


def _check_seal(seal: hmac.HMAC, file: BinaryIO, path: Path, kind: Kind) -> None:
    if not hmac.compare_digest(seal.digest(), file.read(MAC)):
        raise kind.corrupted(path, f"it was changed or truncated, or belongs to another {kind.owner}")
    seal.update(seal.digest())


def _cipher(kind: Kind, secret: Secret, nonce: str) -> Any:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = algorithms.AES(secret.derive(*kind.labels, "encryption", nonce))
    return Cipher(key, modes.CTR(bytes(16))).encryptor()


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
