"""The state of a run according to the public part of its ledger: committed steps, their digests, and publications."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from antiphase import _check
from antiphase._errors import Corrupted, Refused
from antiphase._escape import reorders
from antiphase._ledger import Entry
from antiphase._run.digests import DIGEST_BYTES, KEYED, SHA256, DigestKind

HOST = "host"  # noise source of a run whose ledger names no source
LINEAGE_BYTES = 16
NO_LINEAGE = bytes(LINEAGE_BYTES)  # stored for a step that was committed without a lineage (see `History`)
LONGEST_LABEL = 200
NOT_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, line and paragraph separators


@dataclass(frozen=True)
class Publication:
    """One publication recorded in the ledger.

    Args:
        label: the label given to `Run.publish`.
        steps: number of steps that the publication depends on.
    """

    label: str
    steps: int


@dataclass
class History:
    """The state of a run after all public entries of its ledger.

    Others may know the outputs of the first `published` steps. A replay of such a step must give the same digest.

    A lineage is a keyed digest of all outputs up to a step. Integrations use lineages to check that a training state
    was computed from the outputs in the ledger. Ledger entries store the lineage in the field "mark".

    Args:
        digests: digests of the committed steps, concatenated.
        lineages: lineages of the committed steps, concatenated.
        start: lineage of the initial parameters.
        publications: all publications.
        rewinds: number of times that steps were replaced or noisy outputs were discarded.
        extensions: number of times that the plan was extended.
        source: source of the noise: "host" (AES on the CPU) or the description of a generator on a device.
        details: hash of the plan's details (error, candidates, notes and deviation) when the run was created or last
            extended; None in older ledgers.
        digest_kind: kind of digest that `Run.digest` computes. A run keeps the kind it began with, because with another
            kind, every replay would seem to have a different output. Ledgers that do not name a kind use SHA-256.
    """

    digests: bytearray = field(default_factory=bytearray)
    lineages: bytearray = field(default_factory=bytearray)
    start: bytes = NO_LINEAGE
    publications: list[Publication] = field(default_factory=list)
    rewinds: int = 0
    extensions: int = 0
    source: str = HOST
    details: str | None = None
    digest_kind: DigestKind = SHA256

    def copy(self) -> History:
        """Return a copy that later entries do not change."""
        return replace(
            self,
            digests=bytearray(self.digests),
            lineages=bytearray(self.lineages),
            publications=list(self.publications),
        )

    @property
    def committed(self) -> int:
        """Number of committed steps. Steps are counted from 0, so this is also the next step to take."""
        return len(self.digests) // DIGEST_BYTES

    @property
    def published(self) -> int:
        """Number of steps that the publications so far depend on."""
        return max((p.steps for p in self.publications), default=0)

    def digest(self, step: int) -> bytes:
        """Return the digest that a step was committed with."""
        return bytes(self.digests[step * DIGEST_BYTES : (step + 1) * DIGEST_BYTES])

    def lineage(self, step: int) -> bytes:
        """Return the lineage that a step was committed with, or `NO_LINEAGE`; step -1 is the start of training."""
        if step < 0:
            return self.start
        return bytes(self.lineages[step * LINEAGE_BYTES : (step + 1) * LINEAGE_BYTES])

    def check_commit(self, step: int, digest: bytes) -> str:
        """Return "next", "same" (a replay with the same output) or "rewind" (a replay with a different output).

        Raises `Refused` if the step is after the next step to commit. Also raises `Refused` for a replay with a
        different output if something published depends on the step.
        """
        if step > self.committed:
            raise Refused(
                f"Step {step} cannot be committed: the next step is {self.committed}.",
                hint="commit every step once, in order, including steps with an empty batch",
            )
        if step == self.committed:
            return "next"
        if self.digest(step) == digest:
            return "same"
        if step >= self.published:
            return "rewind"
        raise Refused(
            f"Step {step} was replayed with a different output, but {self._label(step)!r} was published after that "
            "step. Two outputs with the same noise reveal their difference without noise.",
            hint="continue from a checkpoint made at or after that publication, or "
            "start a new run in a new directory; antiphase.compose computes the guarantee of both",
        )

    def check(self, entry: Entry) -> None:
        """Raise `Corrupted` if a public entry cannot follow the entries so far."""
        match entry:
            case {"kind": "commit", "step": int(step), "digest": str()} if step == self.committed:
                pass
            case {"kind": "rewind", "step": int(step)} if self.published <= step < self.committed:
                pass
            case {"kind": "withdraw", "step": int(step)} if 0 <= step <= self.committed:
                pass
            case {"kind": "start", "mark": str()} if self.committed == 0:
                pass
            case {"kind": "source", "source": str()} if self.committed == 0 and self.source == HOST:
                pass
            case {"kind": "publish", "label": str(), "steps": int(steps)} if steps == self.committed:
                pass
            case {"kind": "open" | "extend", "steps": int(), "plan": str(), "header": str()} if entry.get(
                "digests", SHA256
            ) in (SHA256, KEYED):
                pass
            case _:
                raise Corrupted(
                    f"The ledger has an entry that cannot follow the entries before it: {entry}.",
                    hint="another version of antiphase wrote it; read the ledger with that version",
                )

    def apply(self, entry: Entry) -> None:
        """Update the state with a public entry that passed `check`."""
        match entry["kind"]:
            case "commit":
                self.digests += bytes.fromhex(entry["digest"])
                self.lineages += bytes.fromhex(entry["mark"]) if "mark" in entry else NO_LINEAGE
            case "rewind":
                del self.digests[entry["step"] * DIGEST_BYTES :]
                del self.lineages[entry["step"] * LINEAGE_BYTES :]
                self.rewinds += 1
            case "withdraw":
                self.rewinds += 1
            case "start":
                self.start = bytes.fromhex(entry["mark"])
            case "source":
                self.source = entry["source"]
            case "publish":
                self.publications.append(Publication(entry["label"], entry["steps"]))
            case "open":
                self.details = entry.get("details")
                self.digest_kind = entry.get("digests", SHA256)
            case "extend":
                self.details = entry.get("details")
                self.extensions += 1

    def _label(self, step: int) -> str:
        return next(p.label for p in self.publications if p.steps > step)


def read_history(entries: Iterable[Entry]) -> tuple[History, Entry]:
    """Return the state after all public entries, and the last entry of kind "open" or "extend"."""
    history, last = History(), Entry()
    for entry in entries:
        history.check(entry)
        history.apply(entry)
        if entry["kind"] in ("open", "extend"):
            last = entry
    return history, last


def check_label(label: object) -> str:
    """Return the label of a publication. Raises `InvalidArgument` unless it is one short line of text."""
    hint = "a few words that name what is published"
    if not isinstance(label, (str, int)):  # str() of an array would put its contents into the public ledger
        raise _check.invalid("Run.publish", "label", "a string", f"a {type(label).__name__}", hint)
    text = _check.text("Run.publish", "label", str(label), hint)
    if reorders(text):
        hint = "remove characters that change the writing direction, such as U+202E"
        raise _check.invalid("Run.publish", "label", "text without bidirectional control characters", text, hint)
    if len(text) > LONGEST_LABEL or any(unicodedata.category(character) in NOT_TEXT for character in text):
        raise _check.invalid(
            "Run.publish",
            "label",
            f"one line of at most {LONGEST_LABEL} characters",
            f"{text[:40]}..." if len(text) > LONGEST_LABEL else text,
            "name what is published, such as 'checkpoint 12'; keep details elsewhere",
        )
    return text
