"""What a ledger says has happened: which steps were committed, with what digest, and what was published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphase._errors import Corrupted, Refused
from antiphase._ledger import Entry
from antiphase._run.digests import DIGEST_BYTES

HOST = "host"  # the source of a run whose ledger names none
MARK_BYTES = 16
NO_MARK = bytes(MARK_BYTES)  # of a step whose integration gives none


@dataclass(frozen=True)
class Publication:
    """Something left the building: its label and how many steps it depends on."""

    label: str
    steps: int


@dataclass
class History:
    """The state that the public entries add up to.

    Steps below `published` are frozen: their outputs may be known outside, so a replay must give the same digest.
    A mark stands for all outputs up to a step: with it an integration tells whether a state goes on from them.
    """

    digests: bytearray = field(default_factory=bytearray)
    marks: bytearray = field(default_factory=bytearray)
    start: bytes = NO_MARK
    publications: list[Publication] = field(default_factory=list)
    rewinds: int = 0
    extensions: int = 0
    source: str = HOST
    details: str | None = None  # of the plan it was opened or extended with; None in older ledgers

    @property
    def committed(self) -> int:
        """How many steps are committed; the next step to take."""
        return len(self.digests) // DIGEST_BYTES

    @property
    def published(self) -> int:
        """How many steps the publications so far depend on."""
        return max((p.steps for p in self.publications), default=0)

    def digest(self, step: int) -> bytes:
        """The digest with which a step was committed."""
        return bytes(self.digests[step * DIGEST_BYTES : (step + 1) * DIGEST_BYTES])

    def mark(self, step: int) -> bytes:
        """The mark with which a step was committed, or `NO_MARK`; -1 is the start of training."""
        if step < 0:
            return self.start
        return bytes(self.marks[step * MARK_BYTES : (step + 1) * MARK_BYTES])

    def check_commit(self, step: int, digest: bytes) -> str:
        """What committing means: "next", "same" (a free replay) or "rewind"; raises where it would leak."""
        if step > self.committed:
            raise Refused(
                f"Step {step} cannot be committed: the next step is {self.committed}.",
                hint="commit every step once, in order; an empty batch is a step too",
            )
        if step == self.committed:
            return "next"
        if self.digest(step) == digest:
            return "same"
        if step >= self.published:
            return "rewind"
        raise Refused(
            f"Step {step} was replayed with another output, but {self._label(step)!r} was published after it. "
            "The same noise on two outputs reveals their difference.",
            hint="go on from a checkpoint taken at or after that publication, or start a new run and compose the two",
        )

    def check(self, entry: Entry) -> None:
        """Raise where a public entry cannot follow those so far."""
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
            case {"kind": "open" | "extend", "steps": int(), "plan": str(), "header": str()}:
                pass
            case _:
                raise Corrupted(
                    f"The ledger has an entry that cannot follow those before it: {entry}.",
                    hint="it was written by another version; read it with the one that wrote it",
                )

    def apply(self, entry: Entry) -> None:
        """Take a checked public entry into account."""
        match entry["kind"]:
            case "commit":
                self.digests += bytes.fromhex(entry["digest"])
                self.marks += bytes.fromhex(entry["mark"]) if "mark" in entry else NO_MARK
            case "rewind":
                del self.digests[entry["step"] * DIGEST_BYTES :]
                del self.marks[entry["step"] * MARK_BYTES :]
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
            case "extend":
                self.details = entry.get("details")
                self.extensions += 1

    def _label(self, step: int) -> str:
        return next(p.label for p in self.publications if p.steps > step)


def replayed(entries: Iterable[Entry]) -> tuple[History, Entry]:
    """The state that public entries add up to, and the last entry that names plan and header."""
    history, last = History(), Entry()
    for entry in entries:
        history.check(entry)
        history.apply(entry)
        if entry["kind"] in ("open", "extend"):
            last = entry
    return history, last
