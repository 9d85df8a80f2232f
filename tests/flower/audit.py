"""Recompute the epsilon of a federated run from its ledgers, without antiphase and with the standard library alone.

    python tests/flower/audit.py SERVER_DIRECTORY [SECRET_FILE]

Checks the authentication code of every entry, that every release was committed and published once and in order, that
its participants are those whose names were fixed before they trained, and that nobody came back too soon. Then computes
epsilon from the definition: the coefficients of the plan's strategy (BLT, Toeplitz or Identity), the worst pattern of
participations that is no denser than what was achieved, and the analytic Gaussian mechanism. Prints JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

SALT = b"antiphase secret, version 1"


def key_of(file: Path) -> bytes:
    fields = dict(line.split(": ", 1) for line in file.read_text().splitlines() if ": " in line)
    return bytes.fromhex(fields["key"])


def derived(key: bytes, *labels: str | int) -> bytes:
    """HKDF-SHA256 (RFC 5869) of 32 bytes, with the encoding of labels that antiphase uses."""
    info = b""
    for label in (32, *labels):
        data = str(label).encode()
        info += (b"i" if isinstance(label, int) else b"s") + len(data).to_bytes(8, "big") + data
    extracted = hmac.digest(SALT, key, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def entries(directory: Path, part: str, key: bytes, run_id: str) -> list[dict[str, Any]]:
    """The entries of a ledger, whose codes form a chain up to the stored head or beyond."""
    chain = derived(key, "antiphase ledger", run_id)
    data, code = (directory / "private" / "heads").read_bytes().rstrip(b"\n").rsplit(b"\n", 1)
    assert hmac.digest(hmac.digest(chain, b"heads", "sha256"), data, "sha256").hex().encode() == code, "heads"
    head = json.loads(data)[("public", "private").index(part)]
    own, last, found = hmac.digest(chain, part.encode(), "sha256"), bytes(32), []
    for line in (directory / part / "ledger.jsonl").read_bytes().splitlines():
        text, _, given = line.rpartition(b" ")
        last = hmac.digest(own, last + text, "sha256")
        if last.hex().encode() != given:
            break  # a line that was being written when the process was killed
        found.append(json.loads(text))
        if len(found) == head["entries"]:
            assert last.hex() == head["code"], "the chain does not have its stored head"
    assert len(found) >= head["entries"], "entries are missing"
    return found


def participants(ledger: list[dict[str, Any]]) -> list[list[str]]:
    """The participants of each release; fails if a release is missing, doubled, or not that of its cohort."""
    zero, cohort, releases = ledger[0].get("dropouts") == "zero", None, []
    for entry in ledger:
        if entry["kind"] == "cohort":
            assert (cohort, entry["release"]) == (None, len(releases)), "a second cohort for a release"
            cohort = entry["clients"]
        if entry["kind"] == "release":
            assert entry["release"] == len(releases), "a release is missing or doubled"
            assert len(set(entry["clients"])) == len(entry["clients"]), "a client twice in a release"
            assert not zero or sorted(entry["clients"]) == sorted(cohort or []), "not the cohort"
            releases.append(entry["clients"])
            cohort = None
    return releases


def check_run(ledger: list[dict[str, Any]], releases: int, fingerprint: str) -> None:
    """Every release is committed and published once, in order, and nothing was taken back."""
    assert ledger[0]["kind"] == "open"
    assert [entry for entry in ledger if "plan" in entry][-1]["plan"] == fingerprint, "another plan"
    acts = [entry for entry in ledger if entry["kind"] not in ("open", "extend")]
    assert [entry["kind"] for entry in acts] == ["commit", "publish"] * releases, "not one commit and one publication"
    assert [entry["step"] for entry in acts[::2]] == list(range(releases))
    assert [entry["steps"] for entry in acts[1::2]] == list(range(1, releases + 1))


def coefficients(strategy: dict[str, Any], steps: int) -> list[float]:
    """The first column of C."""
    match strategy["type"]:
        case "Identity":
            return [1.0] + [0.0] * (steps - 1)
        case "BLT":
            pairs = list(zip(strategy["decay"], strategy["scale"], strict=True))
            return [1.0] + [sum(w * a ** (t - 1) for a, w in pairs) for t in range(1, steps)]
        case "Toeplitz":
            assert not strategy["column_normalized"]
            given = list(strategy["coefficients"])[:steps]
            return given + [0.0] * (steps - len(given))
    raise AssertionError(f"not for {strategy['type']}")


def squared_norm(column: list[float], pattern: list[int], steps: int) -> float:
    """The squared norm of the sum of the columns of C at the steps of a pattern."""
    return sum(sum(column[t - s] for s in pattern if s <= t) ** 2 for t in range(steps))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian mechanism with sensitivity mu and standard deviation 1, by bisection."""

    def log_cdf(x: float) -> float:
        if x > -30.0:
            return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
        return -0.5 * x * x - math.log(-x * math.sqrt(2.0 * math.pi)) + math.log1p(-1.0 / (x * x))

    def excess(epsilon: float) -> float:
        below = epsilon + log_cdf(-mu / 2 - epsilon / mu)
        return math.exp(log_cdf(mu / 2 - epsilon / mu)) - math.exp(min(below, 700.0)) - delta

    low, high = 0.0, 1.0
    while excess(high) > 0:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


def audit(directory: Path, secret: Path) -> dict[str, Any]:
    key = key_of(secret)
    run_id = json.loads((directory / "run" / "run.json").read_text())["run_id"]
    stored = json.loads((directory / "run" / "plan.json").read_text())
    mechanism = stored["plan"]["mechanism"]
    record = participants(entries(directory / "clients", "private", key, run_id))
    steps = len(record)
    check_run(entries(directory / "run", "public", key, run_id), steps, stored["fingerprint"])
    times: dict[str, list[int]] = {}
    for release, names in enumerate(record):
        for name in names:
            times.setdefault(name, []).append(release)
    gaps = [b - a for pattern in times.values() for a, b in itertools.pairwise(pattern)]
    separation, count = min(gaps, default=steps), max(map(len, times.values()), default=1)
    assert separation >= min(mechanism["participation"]["separation"], steps), "a client came back too soon"
    column = coefficients(mechanism["strategy"], steps)
    # For coefficients that are not negative and do not increase, the earliest pattern is the worst.
    assert all(a >= b >= 0.0 for a, b in itertools.pairwise(column)), "the earliest pattern may not be the worst"
    worst = squared_norm(column, list(range(0, steps, separation))[:count], steps)
    real = max((squared_norm(column, pattern, steps) for pattern in times.values()), default=0.0)
    assert real <= worst * (1 + 1e-12)
    delta, noise = stored["plan"]["problem"]["budget"]["delta"], mechanism["noise_std"]
    return {
        "releases": steps,
        "clients": len(times),
        "separation": separation,
        "participations": count,
        "epsilon": gaussian_epsilon(math.sqrt(worst) / noise, delta),
        "epsilon of the densest client": gaussian_epsilon(math.sqrt(real) / noise, delta),
        "record": hashlib.sha256(json.dumps(record).encode()).hexdigest(),
    }


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(json.dumps(audit(place, Path(sys.argv[2]) if len(sys.argv) > 2 else place / "secret"), indent=1))
