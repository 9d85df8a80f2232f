"""Secrets: what they hide, how they are stored, and that derived keys are HKDF-SHA256 with unambiguous labels."""

import copy
import dataclasses
import hashlib
import hmac
import json
import os
import pickle
import secrets
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase._errors import AntiphaseError, Corrupted, InvalidArgument
from antiphase._record import to_json
from antiphase._secret import HEADER, SALT, Secret, require_secret
from antiphase.strategies import Identity
from tests.signals import at_line

LABELS = st.lists(
    st.one_of(st.integers(), st.text(alphabet="ab01s", max_size=4), st.binary(max_size=4)), min_size=1, max_size=4
)


def encode(label):
    if isinstance(label, int):
        kind, data = b"i", str(label).encode()
    elif isinstance(label, str):
        kind, data = b"s", label.encode()
    else:
        kind, data = b"b", label
    return kind + len(data).to_bytes(8, "big") + data


def hkdf(key, info, length):
    """RFC 5869 in four lines, as an independent implementation."""
    extracted = hmac.new(SALT, key, hashlib.sha256).digest()
    block, out = b"", b""
    for i in range(-(-length // 32)):
        block = hmac.new(extracted, block + info + bytes([i + 1]), hashlib.sha256).digest()
        out += block
    return out[:length]


@settings(deadline=None)
@given(labels=LABELS, length=st.integers(1, 100))
def test_derive_is_hkdf_of_the_length_prefixed_labels(labels, length):
    secret = Secret.insecure(7)
    info = b"".join(encode(label) for label in [length, *labels])
    assert secret.derive(*labels, length=length) == hkdf(secret._key, info, length)


@settings(deadline=None)
@given(one=LABELS, other=LABELS)
def test_different_labels_give_different_keys(one, other):
    secret = Secret.insecure(7)
    same = [(type(x), x) for x in one] == [(type(x), x) for x in other]
    assert (secret.derive(*one) == secret.derive(*other)) == same


def test_a_shorter_key_is_not_the_beginning_of_a_longer_one():
    secret = Secret.insecure(7)
    assert not secret.derive("a", length=64).startswith(secret.derive("a", length=32))


def test_the_keys_of_a_fixed_secret_are_frozen():
    secret = Secret.insecure(42)
    assert secret.derive("noise", 7).hex().startswith("378c84ec4cc0ed5c")
    assert secret.child("run").derive("noise", 7) != secret.derive("noise", 7)
    assert secret.child("run", 1) != secret.child("run", 2)
    assert secret.child("run", 1) == secret.child("run", 1)


@pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1, 1.5, True, "32"])
def test_bad_lengths_are_refused(length):
    with pytest.raises(InvalidArgument, match="length"):
        Secret.insecure(1).derive("a", length=length)


@pytest.mark.parametrize("label", [1.5, None, True, ("a",)])
def test_bad_labels_are_refused(label):
    with pytest.raises(InvalidArgument, match="labels"):
        Secret.insecure(1).derive(label)
    with pytest.raises(InvalidArgument, match="label"):
        Secret.insecure(1).derive()


@pytest.mark.parametrize("given", [(42,), ("x",), (b"x" * 32,), ()])
def test_a_secret_is_not_made_directly(given):
    with pytest.raises(InvalidArgument, match=r"Secret\.generate\(\)") as caught:
        Secret(*given)
    assert "x" * 32 not in str(caught.value)


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_insecure_takes_integers_only(seed):
    with pytest.raises(InvalidArgument, match="seed"):
        Secret.insecure(seed)


def test_insecure_secrets_differ_and_are_marked():
    assert Secret.insecure(1) != Secret.insecure(2)
    assert Secret.insecure(np.int64(5)) == Secret.insecure(5)
    assert Secret.insecure(1).is_insecure
    assert Secret.insecure(1).child("run").is_insecure
    assert "insecure" in repr(Secret.insecure(1))
    assert not Secret.generate().is_insecure
    assert not Secret.generate().child("run").is_insecure


def test_generated_secrets_are_32_fresh_bytes():
    keys = {Secret.generate()._key for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {32}


def test_the_bytes_are_never_shown():
    secret = Secret.generate()
    shown = repr(secret) + str(secret) + f"{secret}" + repr([secret]) + repr(require_secret("x", secret))
    assert secret._key.hex() not in shown
    assert repr(secret._key) not in shown
    with pytest.raises(TypeError):
        vars(secret)


LEAKS = {
    **{f"pickle {n}": lambda secret, n=n: pickle.dumps(secret, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)},
    "pickle in a list": lambda secret: pickle.dumps([secret]),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "getstate": lambda secret: secret.__getstate__(),
    "reduce": lambda secret: secret.__reduce__(),
    "reduce_ex": lambda secret: secret.__reduce_ex__(2),
    **{f"object's reduce_ex {n}": lambda secret, n=n: object.__reduce_ex__(secret, n) for n in range(6)},
    "object's reduce": object.__reduce__,
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_secret_cannot_be_pickled_or_copied(leak):
    with pytest.raises(AntiphaseError, match=r"Secret\.save"):
        LEAKS[leak](Secret.generate())


def test_a_secret_is_no_record_to_replace_or_take_apart():
    secret = Secret.generate()
    for leak in (dataclasses.replace, dataclasses.asdict, dataclasses.fields, vars, dict, list, bytes):
        with pytest.raises(TypeError):
            leak(secret)


def raised(act):
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever it is, it is searched
        act()
    return caught.value


def shown(error):
    """A traceback with the variables of every function, as error trackers send it, and of all errors behind it."""
    text, seen = "", set()
    todo = [error]
    while todo:
        found = todo.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        todo += [found.__cause__, found.__context__]
        frame = found.__traceback__
        while frame is not None:
            inside = frame.tb_frame
            if inside.f_globals["__name__"].startswith("antiphase"):
                text += repr(inside.f_locals)
            frame = frame.tb_next
        text += str(found)
    return text


def parts(secret):
    """Any of these in a text gives away half of the key or more."""
    key = secret._key
    forms = [key.hex()[:32], key.hex()[32:], repr(key)[2:-1], repr(key[:16])[2:-1], repr(key[16:])[2:-1]]
    return [form for form in forms if form]


def test_an_unreadable_file_does_not_show_its_key_in_a_traceback(tmp_path):
    secret, path = Secret.generate(), tmp_path / "secret"
    secret.save(path)
    data = path.read_bytes()
    body = HEADER.replace("1", "2") + "\nkind: generated\nkey: " + secret._key.hex() + "\n"
    other = body.replace("generated", "other").replace("version 2", "version 1")
    long = body.replace("version 2", "version 1").replace("\nkind", "00\nkind")
    checked = [f"{text}check: {hashlib.sha256(text.encode()).hexdigest()}\n".encode() for text in (body, other, long)]
    for wrong in (data[:-1], data[:-70], data + b"\n", data.replace(b"kind", b"kinD"), *checked):
        path.write_bytes(wrong)
        error = raised(lambda: Secret.load(path))
        assert isinstance(error, Corrupted)
        assert not [part for part in parts(secret) if part in shown(error)]


@pytest.mark.parametrize(
    ("name", "failure"),
    [("fsync", OSError(28, "no space")), ("fsync", KeyboardInterrupt()), ("replace", OSError(5, "failed")), ("", None)],
)
def test_a_failed_save_does_not_show_the_key_in_a_traceback(tmp_path, monkeypatch, name, failure):
    def fail(*_):
        raise failure

    secret = Secret.generate()
    with monkeypatch.context() as patched:
        if name:
            patched.setattr(os, name, fail)
        with pytest.raises((InvalidArgument, KeyboardInterrupt)) as caught:
            secret.save(tmp_path / "secret" if name else tmp_path / "none" / "secret")
    assert not [part for part in parts(secret) if part in shown(caught.value)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that an interrupt left open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", ["save", "load", "generate", "child", "insecure"])
def test_an_interrupt_anywhere_does_not_show_the_key_in_a_traceback(tmp_path, monkeypatch, name):
    """Functions that never raise an error by themselves can still be interrupted, or run out of memory."""
    secret = Secret.insecure(8)
    secret.save(tmp_path / "saved")
    monkeypatch.setattr(secrets, "token_bytes", lambda size: secret._key)
    acts = {
        "save": lambda: secret.save(tmp_path / f"{stops}"),
        "load": lambda: Secret.load(tmp_path / "saved"),
        "generate": Secret.generate,
        "child": lambda: secret.child("x"),
        "insecure": lambda: Secret.insecure(8),
    }
    kept = [*parts(secret), *parts(secret.child("x"))]

    def stop():
        raise KeyboardInterrupt

    stops, found = 0, []
    while True:
        try:
            if not at_line(stops, ("antiphase/_secret.py",), stop, acts[name])[1]:
                break
        except KeyboardInterrupt as error:
            found += [(stops, part) for part in kept if part in shown(error)]
        stops += 1
    assert found == []
    assert stops >= 3


def test_a_damaged_ledger_or_state_does_not_show_a_key_in_a_traceback(tmp_path):
    from antiphase._ledger import Ledger
    from antiphase._noise import NoiseStream
    from tests.noise.streams import Noisy

    secret, plan = Secret.generate(), Noisy(Identity(4))
    Ledger(tmp_path, secret, "run", create=True).close()
    ledger = Ledger(tmp_path, secret, "run", create=False)
    ledger.public.append({"kind": "x"})
    keys = [ledger._key, ledger.public._key, ledger.private._key, secret._key]
    ledger.close()
    (tmp_path / "public" / "ledger.jsonl").write_bytes(b"")
    found = shown(raised(lambda: Ledger(tmp_path, secret, "run", create=False)))
    (tmp_path / "private" / "heads").write_bytes(b"")
    found += shown(raised(lambda: Ledger(tmp_path, secret, "run", create=False)))
    NoiseStream(plan, [(3,)], secret, "run").save(tmp_path / "state")
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-1])
    found += shown(raised(lambda: NoiseStream.load(tmp_path / "state", plan, secret)))
    assert "Ledger.__init__" in found  # the search sees the frames of the ledger, whose variables are cleared
    assert not [key for key in keys if repr(key)[2:-1] in found]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "secret" if kind == "pipe" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    with pytest.raises(InvalidArgument, match="must be a regular file"):
        Secret.load(path)


def test_a_secret_behind_a_link_can_be_loaded(tmp_path):
    """As secrets are mounted in containers; inside a run directory links are refused."""
    secret = Secret.generate()
    secret.save(tmp_path / "secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert Secret.load(tmp_path / "link") == secret


@pytest.mark.parametrize("leak", [json.dumps, to_json, hash])
def test_a_secret_cannot_be_written_as_json_nor_hashed(leak):
    with pytest.raises(TypeError):
        leak(Secret.generate())


def test_a_secret_cannot_be_changed():
    secret = Secret.generate()
    with pytest.raises(AttributeError):
        secret._key = bytes(32)
    with pytest.raises(AttributeError):
        del secret._key


def test_equality_is_by_value_and_only_with_secrets():
    assert Secret.generate() != Secret.generate()
    assert Secret.insecure(1) != 1


@pytest.mark.parametrize("value", [42, "xyz", bytes(32)])
def test_require_secret_names_the_way_out_and_not_the_value(value):
    with pytest.raises(InvalidArgument, match="Secret") as caught:
        require_secret("Poisson.sampler", value)
    assert repr(value) not in caught.value.message


# storage


@pytest.mark.parametrize("secret", [Secret.insecure(3), Secret.generate()], ids=["insecure", "generated"])
def test_save_and_load_keep_everything(tmp_path, secret):
    secret.save(tmp_path / "secret")
    loaded = Secret.load(str(tmp_path / "secret"))
    assert loaded == secret
    assert loaded.is_insecure == secret.is_insecure
    assert loaded.derive("a") == secret.derive("a")


def test_the_file_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        Secret.generate().save(tmp_path / "secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_secret_is_never_overwritten(tmp_path):
    first = Secret.generate()
    first.save(tmp_path / "secret")
    with pytest.raises(InvalidArgument, match="never overwritten"):
        Secret.generate().save(tmp_path / "secret")
    assert Secret.load(tmp_path / "secret") == first


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_a_file_that_others_can_reach_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    Secret.generate().save(path)
    path.chmod(mode)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        Secret.load(path)


def test_truncation_at_every_byte_is_detected(tmp_path):
    path = tmp_path / "secret"
    Secret.insecure(1).save(path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Corrupted, match="secret"):
            Secret.load(path)


def test_a_change_of_any_byte_is_detected(tmp_path):
    path = tmp_path / "secret"
    Secret.insecure(1).save(path)
    data = path.read_bytes()
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(Corrupted):
            Secret.load(path)


@pytest.mark.parametrize(
    "body",
    [
        HEADER.replace("1", "2") + "\nkind: generated\nkey: " + "00" * 32 + "\n",
        HEADER + "\nkind: other\nkey: " + "00" * 32 + "\n",
        HEADER + "\nkind: generated\nkey: " + "00" * 31 + "\n",
        HEADER + "\nkind: generated\nkey: xyz\n",
        HEADER + "\nkind: generated\n",
        "",
    ],
)
def test_a_whole_file_of_another_kind_is_refused(tmp_path, body):
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(body + f"check: {hashlib.sha256(body.encode()).hexdigest()}\n")
    with pytest.raises(Corrupted):
        Secret.load(path)


def test_a_missing_file_or_directory_is_a_clear_error(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Secret.load(tmp_path / "none")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Secret.load(tmp_path)
    with pytest.raises(InvalidArgument, match="cannot be written"):
        Secret.generate().save(tmp_path / "none" / "secret")


def test_a_secret_whose_making_was_interrupted_can_be_shown():
    """As a debugger or a traceback does."""
    assert repr(object.__new__(Secret)) == "<Secret>"


def test_labels_of_a_subclass_are_taken_by_their_content():
    class Text(str):
        __slots__ = ()

        def encode(self, *args):
            return b"same"

    class Data(bytes):
        def __len__(self):
            return 0

    class Number(int):
        def __int__(self):
            return 0

    key = Secret.insecure(1).derive
    assert key(Text("a"), Data(b"b"), Number(3)) == key("a", b"b", 3)
