"""The secret of a run: 32 random bytes from which all keys are derived.

Anyone who has the secret can redraw the batches and subtract the noise, so store it apart from the model, the
checkpoints and the logs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np

from antiphase._check import invalid, plain
from antiphase._durable import OTHERS, open_file, replacing
from antiphase._errors import AntiphaseError, Corrupted, InvalidArgument
from antiphase._traceback import without_locals

KEY_BYTES = 32
LONGEST_DERIVED = 255 * 32  # bytes, the limit of HKDF with SHA-256
LARGEST_FILE = 4096
HEADER = "antiphase secret, version 1"
SALT = b"antiphase secret, version 1"


@final
class Secret:
    """32 secret bytes, created by `generate`, `load` or, for tests only, `insecure`.

    Keys are derived as HKDF-SHA256(secret, labels). A key reveals nothing about the secret or about other keys.

    **Guarantee**: the bytes never appear in `repr`, in a pickle, in a copy or in JSON. Comparison takes constant time.
    An insecure secret stays marked as insecure through `save`, `load` and `child`.

    >>> Secret.insecure(42)
    <Secret, insecure: made from an integer>
    >>> Secret.insecure(42) == Secret.insecure(42)
    True

    Reference: Krawczyk and Eronen 2010, RFC 5869.
    """

    __slots__ = ("_insecure", "_key")
    _insecure: bool
    _key: bytes

    def __init__(self, *given: object, **named: object) -> None:
        raise InvalidArgument(
            f"A Secret cannot be created from a value. Got {_kinds(given, named)}.",
            hint="use Secret.generate() or Secret.load(path); for tests and simulations, Secret.insecure(42)",
        )

    @classmethod
    @without_locals
    def generate(cls) -> Secret:
        """Generate a new secret with the operating system's random generator."""
        return _make(secrets.token_bytes(KEY_BYTES), insecure=False)

    @classmethod
    @without_locals
    def insecure(cls, seed: int) -> Secret:
        """Create a reproducible secret from an integer, for tests. Anyone can guess it, and every report says so."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise invalid("Secret.insecure", "seed", "an integer", seed, "for real training, use Secret.generate()")
        return _make(hashlib.sha256(f"antiphase insecure {int(seed)}".encode()).digest(), insecure=True)

    @property
    def is_insecure(self) -> bool:
        """True if the secret was created from an integer, which can be guessed."""
        return self._insecure

    @without_locals
    def derive(self, *labels: str | bytes | int, length: int = KEY_BYTES) -> bytes:
        """Derive a key of `length` bytes for the purpose named by `labels`.

        The input of HKDF is the key length followed by each label with its type and length, so different calls never
        have the same input. For example, the labels ("ab", "c") and ("a", "bc"), the labels 1 and "1", and the lengths
        16 and 32 give unrelated keys.

        >>> Secret.insecure(42).derive("noise", 7).hex()[:16]
        '378c84ec4cc0ed5c'
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= LONGEST_DERIVED:
            hint = "an AES-256 key has 32 bytes"
            raise invalid("Secret.derive", "length", f"an integer from 1 to {LONGEST_DERIVED}", length, hint)
        if not labels:
            raise InvalidArgument("Secret.derive needs a label. Got none.", hint="pass the purpose of the key")
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = b"".join(_encode(label) for label in (length, *labels))
        return HKDF(algorithm=SHA256(), length=length, salt=SALT, info=info).derive(self._key)

    @without_locals
    def child(self, *labels: str | bytes | int) -> Secret:
        """Derive a secret for one purpose, such as one run. Different `labels` give independent secrets."""
        return _make(self.derive("child", *labels), insecure=self._insecure)

    @without_locals
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the secret to a new file that only its owner can read. A crash leaves no file or a complete one."""
        target = Path(path)
        if os.path.lexists(target):
            raise InvalidArgument(
                f"The file {target} already exists. A secret is never overwritten.",
                hint="choose another path, or remove the file yourself; a run cannot be resumed without its secret",
            )
        try:
            with replacing(target) as file:
                file.write(_to_text(self).encode())
        except OSError as error:
            raise InvalidArgument(
                f"The secret cannot be written to {target}: {error.strerror}.",
                hint="choose a directory that exists and that you can write to",
            ) from error

    @classmethod
    @without_locals
    def load(cls, path: str | os.PathLike[str]) -> Secret:
        """Read a file written by `save`. Raises an error if others can access the file, or if it was changed."""
        found = _from_text(_read_private(Path(path)))
        if isinstance(found, Secret):
            return found
        raise Corrupted(
            f"The file {path} does not contain a secret that this version can read: {found}.",
            hint="restore it from a backup; a run cannot be resumed with a different secret",
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._key, other._key) and self._insecure == other._insecure

    def __repr__(self) -> str:
        return "<Secret, insecure: made from an integer>" if getattr(self, "_insecure", False) else "<Secret>"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret cannot be changed")

    def __getstate__(self) -> NoReturn:
        raise AntiphaseError(
            "A Secret cannot be pickled or copied, because the copy could end up in a checkpoint or a message.",
            hint="save it with Secret.save(path) and load it with Secret.load(path) where it is needed",
        )

    def __reduce__(self) -> NoReturn:
        self.__getstate__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.__getstate__()


def require_secret(owner: str, value: object) -> Secret:
    """Return `value`. Raises `InvalidArgument` if it is not a Secret."""
    if not isinstance(value, Secret):
        # Do not show the value: it may be a key.
        raise InvalidArgument(
            f"The 'secret' parameter of {owner} must be a Secret. Got {type(value).__name__} instead.",
            hint="use Secret.generate(), or Secret.insecure(42) in tests",
        )
    return value


def _make(key: bytes, *, insecure: bool) -> Secret:
    made = object.__new__(Secret)
    object.__setattr__(made, "_key", key)
    object.__setattr__(made, "_insecure", insecure)
    return made


def _kinds(given: tuple[object, ...], named: dict[str, object]) -> str:
    return ", ".join(type(value).__name__ for value in (*given, *named.values())) or "nothing"


def _encode(label: str | bytes | int) -> bytes:
    if isinstance(label, str):
        kind, data = b"s", plain(label).encode()  # a subclass of str may encode different labels to the same bytes
    elif isinstance(label, bytes):
        kind, data = b"b", bytes.__add__(label, b"")
    elif isinstance(label, (int, np.integer)) and not isinstance(label, bool):
        number = int.__index__(label) if isinstance(label, int) else int(label)
        kind, data = b"i", str(number).encode()
    else:
        raise invalid(
            "Secret.derive", "labels", "strings, bytes or integers", type(label).__name__, "convert it to a string"
        )
    return kind + len(data).to_bytes(8, "big") + data


def _to_text(secret: Secret) -> str:
    kind = "insecure" if secret.is_insecure else "generated"
    body = f"{HEADER}\nkind: {kind}\nkey: {secret._key.hex()}\n"
    return f"{body}check: {hashlib.sha256(body.encode()).hexdigest()}\n"


def _from_text(data: bytes) -> Secret | str:
    """Return the secret in the contents of a file, or the reason why the contents are invalid."""
    body, _, check = data.rpartition(b"check: ")
    if not hmac.compare_digest(check, hashlib.sha256(body).hexdigest().encode() + b"\n"):
        return "it was truncated or changed, or is not a secret"
    lines = body.decode("ascii", errors="replace").split("\n")
    if lines[0] != HEADER:
        return f"it is not a secret, or it was written by another version; it should begin with {HEADER!r}"
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    try:
        key = bytes.fromhex(fields["key"])
        insecure = {"generated": False, "insecure": True}[fields["kind"]]
    except (KeyError, ValueError):
        return "it has invalid fields"
    if len(key) != KEY_BYTES:
        return f"its key has {len(key)} bytes instead of {KEY_BYTES}"
    return _make(key, insecure=insecure)


def _read_private(path: Path) -> bytes:
    try:
        with os.fdopen(open_file(path, follow=True), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & OTHERS:
                raise InvalidArgument(
                    f"The secret {path} can be accessed by users other than its owner (mode {mode & 0o777:03o}).",
                    hint=f"run chmod 600 {path}; if others may have read it, treat the secret as compromised",
                )
            return file.read(LARGEST_FILE)
    except OSError as error:
        why = error.strerror
    except Corrupted as error:
        why = error.message.rstrip(".")
    raise InvalidArgument(
        f"The secret {path} cannot be read: {why}.",
        hint="check the path; for a new run, create a secret with Secret.generate().save(path)",
    )
