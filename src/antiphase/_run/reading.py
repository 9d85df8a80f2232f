"""Reads a run directory without changing it. This is safe while another process uses the run."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase._accounting import verify_claim
from antiphase._bound import Bound
from antiphase._errors import Corrupted
from antiphase._ledger import Entry, Ledger
from antiphase._plan import Plan
from antiphase._record import from_json
from antiphase._run.digests import DIGEST_BYTES, KEYED, KeyedDigest, digest, keyed_output
from antiphase._run.directory import FORMAT, Header, check_layout, own_secret, read_header
from antiphase._run.history import History, Publication, read_history
from antiphase._run.privacy_report import PrivacyReport, early_stop_entropy, report
from antiphase._run.tail import Tail, tail_of
from antiphase._samplers import Sampler
from antiphase._secret import Secret


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run directory, checked against the ledger.

    Args:
        plan: plan of the run.
        header: run id, leaves (parameter shapes), dtype of the noise and number of examples.
        secret: secret of the run.
        history: state after all public entries of the ledger.
        public: number of public entries of the ledger.
        batches: private entries of the ledger, which record the batches.
        torn: for each ledger file, the number of bytes after the last authentic entry. They come from a crash, or from
            a write in progress.
    """

    plan: Plan
    header: Header
    secret: Secret
    history: History
    public: int
    batches: tuple[Entry, ...]
    torn: dict[str, int]

    def report(self) -> PrivacyReport:
        """Return the privacy report of the run, as `Run.report` does."""
        return report(self.plan, self.history, self.secret, self.header.run_id, self.header.examples, self._tail)

    def verify(self, stated: PrivacyReport, attempt: int) -> Bound | None:
        """Verify, with fresh samples, the stated epsilon of the steps that ran. Return it, or raise `Refused`.

        An epsilon that does not come from samples is returned without this check: `report` has computed it without
        randomness, so fresh samples cannot confirm or refute it.

        Args:
            stated: report on this run. Its `guarantee` is the claim to check.
            attempt: 1 for the first verification, 2 for the second, and so on, as for `antiphase.verify`.
        """
        bound, plan = stated.guarantee, self.plan
        if bound is None or bound.kind != "confident":
            return bound
        entropy = early_stop_entropy(plan, stated.steps_run, self.secret, self.header.run_id)
        mechanism = plan.mechanism.first(stated.steps_run) if bound.entropy == entropy else plan.mechanism
        delta = self._tail.ideal_delta(bound.value, stated.delta)
        found = verify_claim(mechanism, bound.value, delta, attempt=attempt)
        return replace(found, value=bound.value)

    def epsilon_with_tail(self, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
        """Return the epsilon at `delta`, corrected for the bounded range of the random draws of the run.

        Args:
            epsilon_at: function of delta that returns the epsilon of the mechanism with ideal, unbounded draws.
            delta: delta of the guarantee.
        """
        return self._tail.covered(epsilon_at, delta)

    def confirms(self, step: int, arrays: Mapping[str, Any]) -> bool:
        """Return whether the ledger says that `step` was committed with `arrays` as its output."""
        if not 0 <= step < self.history.committed:
            return False
        keyed = self.history.digest_kind == KEYED
        found = KeyedDigest(self.secret, self.header.run_id)(step, arrays) if keyed else digest(arrays)
        code = keyed_output(self.secret, self.header.run_id, found)
        return hmac.compare_digest(self.history.digest(step), code)

    def completed(self, steps: int, label: str) -> RunRecord:
        """Return this record as if `steps` steps were committed and the last of them was published.

        Integrations that store their steps themselves need this if they were stopped before all steps were in the
        ledger. The digests of the missing steps are unknown, so `confirms` returns False for these steps.
        """
        history = replace(
            self.history, digests=self.history.digests + bytes(DIGEST_BYTES * (steps - self.history.committed))
        )
        if history.published < steps:
            history.publications = [*self.history.publications, Publication(label, steps)]
        return replace(self, history=history)

    @property
    def _tail(self) -> Tail:
        leaves = {name: from_json(leaf) for name, leaf in self.header.leaves}
        return tail_of(self.plan, leaves, self.header.dtype, self.history.source)

    @property
    def details_recorded(self) -> bool:
        """True if the plan's details (error, candidates, notes) match the ledger. False if an old ledger lacks them."""
        return self.history.details == self.plan.details

    @property
    def details_edited(self) -> bool:
        """True if the plan's details (error, candidates, notes) differ from those in the ledger."""
        return self.history.details not in (None, self.plan.details)

    def sampler(self) -> Sampler:
        """Return the sampler that draws the batches of the run."""
        return self.header.sampler(self.plan, self.plan.steps, self.secret)


def read_run(directory: Path, secret: Secret | None = None, deviation: str = "") -> RunRecord:
    """Read a run directory.

    **Guarantee**: raises an error if a file of the run is missing, or if the batches of a committed step are not
    recorded. Also raises an error if the header, plan or entries cannot be authenticated with the run's secret. Nothing
    is written.

    Args:
        directory: run directory.
        secret: secret of the run, if the directory does not store it.
        deviation: value of `Plan.deviation` for plan files that were written before this field existed.
    """
    check_layout(directory)
    header = read_header(directory)
    if header is None:
        raise Corrupted(
            f"{directory} holds no run: run.json is missing.", hint="pass the directory that was given to Run.open"
        )
    own = own_secret(directory, create=False) if secret is None else secret
    with closing(Ledger(directory, own, header.run_id, create=False, read_only=True)) as ledger:
        history, last = read_history(ledger.public.entries())
        batches = tuple(ledger.private.entries())
        torn = {f"{part}/ledger.jsonl": getattr(ledger, part).torn for part in ("public", "private")}
        public = ledger.public.head.entries
    if header.format != FORMAT or last.get("header") != header.fingerprint:
        raise Corrupted(
            "The header run.json differs from the header in the ledger.", hint="restore run.json from a copy"
        )
    plan = Plan._load(directory / "plan.json", deviation)
    if last["plan"] != plan.fingerprint:
        raise Corrupted(
            "The file plan.json is not the plan of this run.",
            hint="if the process ended while it was extending the run, open the run with the extended plan; "
            "otherwise restore plan.json from a copy",
        )
    _check_batches_recorded(header, history, batches)
    return RunRecord(plan, header, own, history, public, batches, torn)


def _check_batches_recorded(header: Header, history: History, batches: tuple[Entry, ...]) -> None:
    if header.examples is None:
        return
    recorded = {entry.get("step") for entry in batches}
    lost = sum(step not in recorded for step in range(history.committed))
    if lost:
        raise Corrupted(
            f"The ledger private/ledger.jsonl has no batches for {lost} of {history.committed} committed steps.",
            hint="entries were lost in a crash, or removed; open the run with Run.open, which draws these batches "
            "again and records them",
        )
