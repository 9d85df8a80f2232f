"""The keyed digest of outputs: it differs for different outputs, and reveals nothing about them.

A run keeps the kind of digest with which it began.
"""

import hashlib
import hmac
import itertools
import json
import shutil
import traceback
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import antiphase as ap
from antiphase._run import opening
from antiphase._run.digests import KeyedDigest
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, take
from tests.stored.cases import LEAVES as STORED_LEAVES
from tests.stored.cases import make_private

SECRET = ap.Secret.insecure(7)
CODE = KeyedDigest(SECRET, "run")
STORED = Path(__file__).parent.parent / "stored" / "0.1.0" / "runs"
BYTES = np.arange(1, 25, dtype=np.uint8)

# Pairwise different outputs that a careless encoding could confuse. Most of them consist of the same bytes.
DIFFERENT = {
    "one array": [BYTES],
    "two arrays": [BYTES[:8], BYTES[8:]],
    "cut elsewhere": [BYTES[:9], BYTES[9:]],
    "three arrays": [BYTES[:8], BYTES[8:16], BYTES[16:]],
    "an empty array first": [BYTES[:0], BYTES],
    "an empty array last": [BYTES, BYTES[:0]],
    "two empty arrays": [BYTES, BYTES[:0], BYTES[:0]],
    "other order": [BYTES[8:], BYTES[:8]],
    "other shape": [BYTES.reshape(4, 6)],
    "transposed shape": [BYTES.reshape(6, 4)],
    "more dimensions": [BYTES.reshape(1, 24)],
    "other dtype": [BYTES.view(np.int8)],
    "wider dtype": [BYTES.view("<u4")],
    "other byte order": [BYTES.view(">u4")],
    "floats": [BYTES.view("<f4")],
    "complex numbers": [BYTES.view("<c8")],
    "a zero more": [np.append(BYTES, np.uint8(0))],
    "a block of zeros more": [np.append(BYTES, np.zeros(16, dtype=np.uint8))],
    "a zero less": [BYTES[:-1]],
    "named": {"a": BYTES},
    "named differently": {"b": BYTES},
    "two names": {"a": BYTES[:8], "b": BYTES[8:]},
    "swapped names": {"a": BYTES[8:], "b": BYTES[:8]},
    "a name like a description": {"', '|u1', (24,)), ('": BYTES},
    "zero": [np.zeros(1)],
    "minus zero": [-np.zeros(1)],
    "a scalar": [np.zeros(())],
    "nothing": [np.zeros(0)],
    "nothing, of another shape": [np.zeros((0, 3))],
    "False": [np.zeros(1, dtype=bool)],
}


def opened(directory, **options):
    plan = plan_for(STRATEGIES["toeplitz"])
    return ap.Run.open(plan, directory, **{"leaves": LEAVES, "examples": 40, "secret": SECRET, **options})


def train(run, model, stop, start=0, data_seed=0):
    for step in range(start, stop):
        model = take(run, step, model, data_seed)
        run.commit(step, run.digest(step, model))
    return model


@pytest.mark.parametrize("segment", [16, 1 << 30])
def test_outputs_that_look_alike_have_different_digests(segment):
    codes = {name: CODE(3, arrays, segment) for name, arrays in DIFFERENT.items()}
    assert all(len(code) == 32 for code in codes.values())
    for (a, one), (b, other) in itertools.combinations(codes.items(), 2):
        assert one != other, f"{a} and {b}"


@pytest.mark.parametrize("segment", [1, 16, 24, 1 << 30])
def test_every_flipped_bit_changes_the_digest(segment):
    arrays = [np.linspace(0, 1, 7, dtype=np.float32), np.array(2.5), np.arange(5, dtype=np.int16)]
    before = CODE(0, arrays, segment)
    seen = {before}
    for i, array in enumerate(arrays):
        for place in range(8 * array.nbytes):
            changed = array.copy()
            changed.reshape(-1).view(np.uint8)[place // 8] ^= 1 << place % 8
            seen.add(CODE(0, [*arrays[:i], changed, *arrays[i + 1 :]], segment))
    assert len(seen) == 1 + 8 * sum(array.nbytes for array in arrays)
    assert CODE(0, [array.copy() for array in arrays], segment) == before


def test_step_run_and_secret_change_the_digest():
    codes = [
        CODE(0, [BYTES]),
        CODE(1, [BYTES]),
        CODE(1 << 32, [BYTES]),
        KeyedDigest(SECRET, "other")(0, [BYTES]),
        KeyedDigest(ap.Secret.insecure(8), "run")(0, [BYTES]),
        ap.digest([BYTES]),
    ]
    assert len(set(codes)) == len(codes)


def test_memory_layout_does_not_matter():
    array = np.arange(24.0).reshape(2, 3, 4)
    wide = np.zeros((2, 3, 8))
    wide[..., ::2] = array
    for other in (np.asfortranarray(array), wide[..., ::2], array[::-1][::-1], array.tolist()):
        assert CODE(0, [other]) == CODE(0, [array])
    assert CODE(0, {"b": BYTES, "a": array}) == CODE(0, {"a": array, "b": BYTES})


@pytest.mark.integration
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, np.dtype(np.longdouble).newbyteorder()])
@pytest.mark.parametrize("function", [lambda arrays: CODE(3, arrays), ap.digest])
def test_unused_bytes_of_long_doubles_do_not_matter(dtype, function):
    """On x86-64, a long double has 10 bytes of data and 6 unused bytes, which keep what was in memory before."""
    values = np.arange(1, 50, dtype=np.float64) / 3
    found = set()
    for filler in (0, 255):
        array = np.full(values.size * np.dtype(dtype).itemsize, filler, np.uint8).view(dtype)
        array[:] = values
        found.add(function([array]))
    assert len(found) == 1
    changed = values.astype(dtype)
    changed[7] += np.finfo(np.longdouble).eps * 8
    assert function([changed]) not in found


def test_tensors_are_digested_like_arrays():
    torch = pytest.importorskip("torch")
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    tensor = torch.tensor(array, requires_grad=True)
    assert CODE(0, [tensor]) == CODE(0, [array])
    assert CODE(0, [tensor.T]) == CODE(0, [array.T]) != CODE(0, [array])
    with pytest.raises(ap.InvalidArgument, match="numeric arrays"):
        CODE(0, [torch.zeros(2, dtype=torch.bfloat16)])


@pytest.mark.parametrize("segment", [16, 10, 1 << 30])
def test_it_is_the_documented_function(segment):
    """By another interface of the cryptographic library, from the contents as one string."""
    arrays = {"w": np.arange(7, dtype="<f4"), "b": np.arange(5, dtype="<f8")}
    data = arrays["b"].tobytes() + arrays["w"].tobytes()
    description = b"[('b', '<f8', (5,)), ('w', '<f4', (7,))]"
    gmac, outer = (SECRET.derive("keyed output digest", kind, "run") for kind in ("GMAC", "HMAC"))
    text = (9).to_bytes(8, "big") + len(description).to_bytes(8, "big") + description
    for i, start in enumerate(range(0, len(data), segment)):
        nonce = (9).to_bytes(8, "big") + i.to_bytes(4, "big")
        text += AESGCM(gmac).encrypt(nonce, b"", data[start : start + segment])
    assert CODE(9, arrays, segment) == hmac.digest(outer, text, hashlib.sha256)


def test_a_replay_is_free_with_the_same_data_and_refused_with_other_data(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 6)
        run.publish("model")
    with opened(tmp_path) as run:
        train(run, fresh_model(), 6)
        assert run.report().rewinds == 0
    with opened(tmp_path) as run, pytest.raises(ap.Refused, match="was replayed with a different output"):
        train(run, fresh_model(), 6, data_seed=1)


def test_neither_keys_nor_tags_nor_digests_are_in_a_file_or_a_message(tmp_path):
    with opened(tmp_path, secret=None) as run:
        model, digests = fresh_model(), []
        for step in range(STEPS):
            model = take(run, step, model)
            digests.append(run.digest(step, model))
            run.commit(step, digests[-1])
        run.save()
        run.publish("model")
        code = run._keyed_digest
        with pytest.raises(ap.InvalidArgument) as caught:
            run.digest(0, [np.array(["text"])])
        with pytest.raises(TypeError):
            code.__reduce_ex__(2)
        trace = caught.value.__traceback__.tb_next  # below this function, which has the digests in a variable
        shown = "".join(traceback.StackSummary.extract(traceback.walk_tb(trace), capture_locals=True).format())
        assert "arrays" in shown
        shown += f"{code!r} {run!r} {vars(run)}"
    data = b"".join(np.asarray(m).tobytes() for m in model)
    nonce = (STEPS - 1).to_bytes(8, "big") + bytes(4)
    tag = AESGCM(code._gmac_key).encrypt(nonce, b"", data)
    secrets = [code._gmac_key, code._hmac_key, tag, *digests]
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for secret in secrets:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
        assert not any(secret in held or secret.hex().encode() in held for held in files)


def test_a_run_keeps_the_kind_of_digest_it_began_with(tmp_path, monkeypatch):
    """A run that began before keyed digests existed is replayed after the upgrade, published steps included."""
    entry = opening._new_journal

    def old(plan, path, header, secret, lock):
        append = opening.Journal.append
        with monkeypatch.context() as patch:
            patch.setattr(
                opening.Journal,
                "append",
                lambda self, entry: append(self, {k: v for k, v in entry.items() if k != "digests"}),
            )
            return entry(plan, path, header, secret, lock)

    monkeypatch.setattr(opening, "_new_journal", old)
    with opened(tmp_path) as run:
        model = fresh_model()
        for step in range(6):
            model = take(run, step, model)
            run.commit(step, ap.digest(model))
        run.publish("model")
    monkeypatch.undo()
    first = json.loads((tmp_path / "public" / "ledger.jsonl").read_text().splitlines()[0].rpartition(" ")[0])
    assert "digests" not in first
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), STEPS)
        assert run.digest(0, model) == ap.digest(model)
        assert run.report().rewinds == 0
    with opened(tmp_path / "new") as run:
        assert run.digest(0, model) != ap.digest(model)


def test_stored_runs_have_sha256(tmp_path):
    name = sorted(path.name for path in STORED.iterdir())[0]
    shutil.copytree(STORED / name, tmp_path / "run")
    make_private(tmp_path / "run")
    expected = json.loads((STORED.parent / "expected.json").read_text())["runs"][name]
    plan, dtype = ap.Plan.load(tmp_path / "run" / "plan.json"), name.rpartition("-")[2]
    with ap.Run.open(plan, tmp_path / "run", leaves=STORED_LEAVES, examples=expected["examples"], dtype=dtype) as run:
        assert run.digest(run.committed, [BYTES]) == ap.digest([BYTES])


def test_an_unknown_kind_of_digest_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "KEYED", "blake3")
    with pytest.raises(ap.Corrupted, match="another version"):
        opened(tmp_path)


@pytest.mark.parametrize("step", [-1, STEPS, 0.0, True, "0"])
def test_a_step_that_is_none_is_refused(tmp_path, step):
    with opened(tmp_path) as run, pytest.raises(ap.InvalidArgument, match=r"Run\.digest"):
        run.digest(step, [BYTES])
