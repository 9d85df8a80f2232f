"""The server strategy: DP-FTRL for clients that come and go."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from antiphase import _check
from antiphase._bound import rounded_up
from antiphase._errors import InvalidArgument, Refused
from antiphase._participation import MinSeparation
from antiphase._plan import Plan
from antiphase._secret import Secret
from antiphase.flower._cohort import Cohort, Dropouts
from antiphase.flower._collect import PULLED, Mailbox, replies
from antiphase.flower._force import plan_in_force, planned_participation
from antiphase.flower._metrics import mean_metrics
from antiphase.flower._optimizer import ServerOptimizer, optimizer_for
from antiphase.flower._round import Round, Terms
from antiphase.flower._selection import Identity, Selection
from antiphase.flower._session import Session
from antiphase.flower._wire import (
    ARRAYS,
    CONFIG,
    TAG,
    Answer,
    Arrays,
    Phase,
    Task,
    to_array_record,
    to_arrays,
    to_record,
)

LOG = logging.getLogger("flwr")
SMALLEST_CLIP = 1e-100  # squares of smaller norms vanish in float64, and clipping would let them pass
Short = Literal["retry", "release"]


@final
class DPFTRL(Strategy):
    """Federated averaging with correlated noise, for clients that come and go.

    Release t of a plan with strategy C, noising matrix N and clipping norm c:

        update_t = (sum over `goal` clients of their clipped updates + c (N z)_t) / goal,     then the optimizer

    Every update is clipped again on the server. A client takes part again after `separation` releases, counted by
    the server's own record. A release is one atomic rename on disk, before anything is broadcast; the same script
    started again after a kill goes on with it.

    Unless `dropouts` says otherwise, a release begins with a check-in, which touches no data and decides who takes
    part. A client that then crashes or stays silent has taken part with a zero update.

    **Guarantee**: that of the plan for each client (`Problem.unit` says what a client stands for) under the plan's
    adjacency, over all models that leave the server. It rests on identities that last: see `identity`. `report` states
    what the participations that happened amount to.

    Args:
        plan: its participation must be `MinSeparation`; its clipping norm is that of an update.
        directory: of the server alone: it holds the secret and the record of who took part.
        goal: places in a release, and what the sum of the updates is divided by, however many came.
        optimizer: None for the one that the plan's workload describes.
        identity: what the server's record is kept by: "pseudonym", which `participation_mod` keeps on the client's
            disk, or "key", the node's authentication key, for a SuperLink that authenticates its SuperNodes. Node ids
            serve for neither: Flower gives out a new one at every start.
        separation: None for the plan's. A smaller one lets clients come back sooner than was planned, and the report
            states what that costs.
        dropouts: what becomes of a client that was asked to train and then fails or does not reply in time. "zero": its
            update is zero, its place stays taken and its participation is used up, so that nothing about it can change
            who else takes part. "replace": another client gets its place, and the guarantee rests on the assumption
            that crashes, kills and delays do not depend on the clients' data. It cannot change within a run; a run
            begun by a version that did not record it keeps "replace". The report says which one applied.
        oversampling: how many clients are asked for each place: to check in, or with dropouts="replace" to train.
        when_short: what happens where fewer than `goal` clients check in, or with dropouts="replace" fewer than `goal`
            updates come in time. "retry": nothing is released, what came is kept in memory, and more clients are
            asked. "release": what came, even nothing, is released with the same noise and divisor.
        attempts: how often in a row a release may fall short before `start` gives up.
        wait: seconds to wait for `goal` clients that may take part, and as long again for them to check in.
        zero_above: updates with a larger entry than so many clipping norms count as zero; None clips them like others.
        raw_metrics: whether the clients' own metrics are averaged and returned. They are not private, and no
            guarantee covers them.
        simulated_goal: for simulations with few clients: collect so many updates and scale the noise by
            simulated_goal / goal, so that the model sees the noise it would see with `goal` clients. Such a run is
            not private, and no guarantee is ever stated for it.
        secret: None keeps one in the directory.

    Reference: McMahan, Xu and Zhang 2024, Alg. 1; Kairouz et al. 2021.
    """

    def __init__(
        self,
        plan: Plan,
        directory: str | Path,
        *,
        goal: int,
        optimizer: ServerOptimizer | None = None,
        identity: Identity = "pseudonym",
        separation: int | None = None,
        dropouts: Dropouts = "zero",
        oversampling: float = 1.0,
        when_short: Short = "retry",
        attempts: int = 10,
        wait: float = 60.0,
        zero_above: float | None = None,
        raw_metrics: bool = False,
        simulated_goal: int | None = None,
        secret: Secret | None = None,
    ) -> None:
        planned = planned_participation(plan)
        _check.real("DPFTRL", "clip_norm", plan.problem.clip_norm, SMALLEST_CLIP, 1e300, "scale the updates up")
        self.directory, self._secret = Path(directory).absolute(), secret  # whatever changes the working directory
        self.goal = _check.positive_integer("DPFTRL", "goal", goal, "how many updates make a release")
        self._collected = self.goal
        if simulated_goal is not None:
            self._collected = _check.positive_integer("DPFTRL", "simulated_goal", simulated_goal)
        self._separation = planned.separation
        if separation is not None:
            self._separation = _check.positive_integer("DPFTRL", "separation", separation, "None takes the plan's")
        self._limit = planned.max_participations
        self._scale = self._collected / self.goal
        self.plan = plan_in_force(plan, MinSeparation(self._separation, self._limit), self._scale)
        self._planned = {"separation": planned.separation, "limit": self._limit}
        _one_of("identity", identity, ("pseudonym", "key"))
        _one_of("when_short", when_short, ("retry", "release"))
        _one_of("dropouts", dropouts, get_args(Dropouts))
        self._dropouts: Dropouts = dropouts
        self._identity, self._when_short, self._raw_metrics = identity, when_short, bool(raw_metrics)
        self._oversampling = _check.real("DPFTRL", "oversampling", oversampling, 1.0, 1e6, "1.3 asks 30 % more")
        self._attempts = _check.positive_integer("DPFTRL", "attempts", attempts, "1 gives up at the first failure")
        self._wait = _check.real("DPFTRL", "wait", wait, 0.0, 1e9, "seconds")
        self._zero_above = zero_above
        if zero_above is not None:
            _check.real("DPFTRL", "zero_above", zero_above, 1.0, 1e300, "100 is usual; None clips instead")
        self._optimizer = optimizer_for(plan.problem.workload) if optimizer is None else optimizer
        self._session: Session | None = None
        self._round: Round | None = None
        self._mailbox: Mailbox | None = None
        self._selection = Selection(identity)
        self._fresh: list[int] = []  # nodes that may be asked in this attempt
        self._content = RecordDict()
        self._ttl: float | None = None

    def summary(self) -> None:
        """Log the settings, as Flower does before the first round."""
        LOG.info("\t├──> Plan: %s, %d releases", type(self.plan.mechanism.strategy).__name__, self.plan.steps)
        LOG.info("\t├──> Clipping norm %g, noise_std %g", self._clip_norm, self.plan.mechanism.noise_std)
        LOG.info("\t├──> Report goal %d, separation %d", self.goal, self._separation)
        LOG.info("\t├──> Dropouts: %s", self._dropouts if self._session is None else self._session.dropouts)
        LOG.info("\t└──> Planned epsilon %s", rounded_up(self.plan.guarantee.value))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train, from where the directory says the run has come to.

        Args:
            grid: Flower's.
            initial_arrays: the model before the first release; on a resumed run only names and shapes are used.
            num_rounds: releases of the whole run when this returns; None for all of the plan.
            timeout: seconds that clients have to train and reply; with dropouts="zero" a release waits that long for
                one that is silent.
            train_config: sent to the clients with every task.
            evaluate_config: not used: metrics of clients are releases, so they do not evaluate.
            evaluate_fn: called with the number of releases and the model, before the first one and after each; it
                should look at data that need no protection.
        """
        session = self._open(initial_arrays)
        try:
            return self._train(session, grid, num_rounds, timeout, train_config or ConfigRecord(), evaluate_fn)
        finally:
            self._session = self._round = self._mailbox = None
            session.close()

    def _train(
        self,
        session: Session,
        grid: Grid,
        num_rounds: int | None,
        timeout: float,
        config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        self.summary()
        # A reply that was cut short, by a client that was killed, must not take those of others with it.
        size = 1 if session.dropouts == "zero" else PULLED
        self._ttl, self._mailbox = timeout, Mailbox(grid, session.counts, size)
        last = self.plan.steps if num_rounds is None else num_rounds
        if not 0 <= last <= self.plan.steps:
            raise _check.invalid("DPFTRL.start", "num_rounds", f"at most {self.plan.steps}", last, "extend the plan")
        result, failures = Result(arrays=to_array_record(session.state.model)), 0
        _evaluate(evaluate_fn, session.state.release, result)
        while session.state.release < last:
            number = session.state.release + 1
            LOG.info("[RELEASE %d/%d]", number, last)
            messages = list(self.configure_train(number, result.arrays, config, grid))
            arrays, metrics = self.aggregate_train(number, self._replies(messages, timeout))
            if arrays is None:
                failures += 1
                self._give_up_after(failures)
                continue
            failures, result.arrays = 0, arrays
            if metrics is not None:
                result.train_metrics_clientapp[number] = metrics
            _evaluate(evaluate_fn, number, result)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Tasks for clients that may take part in the next release; those of the cohort, where there is one.

        Args:
            server_round: not used: Flower's numbers start again with the process, releases do not.
            arrays: not used: what is broadcast is what is on disk.
            config: sent along.
            grid: Flower's.
        """
        session = self._opened()
        current = self._current(session)
        if current.cohort is None:
            self._content = self._task(session, "train", config)
            wanted = self._collected - len(current.clients)
            self._fresh = self._candidates(session, current, grid, wanted)
            return self._messages(math.ceil(wanted * self._oversampling))
        self._check_in(session, current, current.cohort, grid)
        if session.cohort is None:
            if current.cohort.missing and self._when_short == "retry":
                return []
            session.fix_cohort(current.cohort.names, current.cohort.nodes)
        self._content, self._fresh = self._task(session, "train", config), current.cohort.nodes
        return self._messages(len(self._fresh))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the release from replies, read one by one and no further than needed; (None, None) where too few came.

        With a cohort the release is made once it is fixed: its clients have all taken part, whoever replied.

        Args:
            server_round: not used.
            replies: any iterable; each message is dropped before the next one is asked for.
        """
        session, current = self._opened(), self._round
        if current is None:
            raise Refused("aggregate_train was called before configure_train.", hint="call `start`")
        for message in replies:
            self._take(session, current, message)
            if self._wanted(current) <= 0:
                break
        if not self._suffices(session, current):
            present = len(current.clients if current.cohort is None else current.cohort.nodes)
            session.counts["failed attempts"] += 1
            LOG.warning("release %d failed: %d of %d", current.terms.release, present, self._collected)
            return None, None
        self._look_through(session, current)
        self._count_silent(session, current)
        self._round = None
        self._release(session, current)
        return to_array_record(session.state.model), mean_metrics(current.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: what clients measure on their data would be one more release."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None."""
        return None

    @property
    def _clip_norm(self) -> float:
        return self.plan.problem.clip_norm

    def _open(self, initial: ArrayRecord) -> Session:
        settings: dict[str, Any] = {
            "clip_norm": self._clip_norm,
            "dropouts": self._dropouts,
            "goal": self.goal,
            "identity": self._identity,
            "noise_scale": self._scale,
            "planned": self._planned,
            "raw_metrics": self._raw_metrics,
        }
        model = to_arrays(initial)
        if not all(np.isfinite(value).all() for value in model.values()):
            raise InvalidArgument("The initial model has NaN or infinite entries.", hint="check how it was made")
        self._session = Session.open(self.plan, self.directory, settings, model, self._optimizer.init, self._secret)
        if self._session.dropouts != self._dropouts:
            LOG.warning(
                "%s was begun by a version that always replaced clients that failed: this run goes on with "
                "dropouts='replace'",
                self.directory,
            )
        return self._session

    def _opened(self) -> Session:
        if self._session is None:
            raise Refused("The strategy is not running.", hint="call `start`, which opens the run's directory")
        return self._session

    def _current(self, session: Session) -> Round:
        """The release in the making, with what earlier attempts collected."""
        release, limit = session.state.release, self._limit or self.plan.steps
        if self._round is None:
            terms = Terms(release, self._separation, limit, self._clip_norm, self._zero_above, self._raw_metrics)
            cohort = Cohort(self._collected, session.cohort) if session.dropouts == "zero" else None
            self._round = Round(terms, session.state.model, session.participants, session.counts, cohort)
            if self._mailbox is not None:
                self._mailbox.clear()
        return self._round

    def _task(self, session: Session, phase: Phase, config: ConfigRecord) -> RecordDict:
        """What a message for the next release has in it; the mark is on disk before it is sent."""
        release, mark = session.state.release, session.mark()
        terms = (session.run.run_id, release, self._separation, self._clip_norm, self._raw_metrics)
        content = RecordDict({CONFIG: config, TAG: to_record(Task(*terms, mark, phase))})
        if phase == "train":
            content[ARRAYS] = to_array_record(session.state.model)
        return content

    def _candidates(self, session: Session, current: Round, grid: Grid, wanted: int) -> list[int]:
        def allowed(identity: bytes) -> bool:
            return current.may_enter(session.name(identity))

        asked = set(current.asked.values())
        return self._selection.candidates(grid, allowed, wanted, self._wait, asked, set(session.nodes))

    def _check_in(self, session: Session, current: Round, cohort: Cohort, grid: Grid) -> None:
        """Let clients check in until all places are taken, or the time is over.

        Who is there, who is eligible and who is quick to say so decide about the places, before anybody has trained.
        """
        if not cohort.missing:
            return
        self._content = self._task(session, "check-in", ConfigRecord())
        self._fresh = self._candidates(session, current, grid, cohort.missing)
        messages = self._messages(math.ceil(cohort.missing * self._oversampling))
        mailbox, oversampling = self._mailbox, self._oversampling
        assert mailbox is not None
        for message in replies(
            mailbox,
            messages,
            current.asked,
            lambda: cohort.missing,
            self._messages,
            oversampling,
            self._wait,
            overtime=True,
        ):
            found = self._identified(session, current, message)
            if found is not None:
                current.check_in(message.metadata.src_node_id, *found)
        if not cohort.missing:
            self._look_through(session, current)

    def _messages(self, count: int) -> list[Message]:
        nodes, self._fresh = self._fresh[:count], self._fresh[count:]
        return [Message(self._content, node, MessageType.TRAIN, ttl=self._ttl) for node in nodes]

    def _replies(self, messages: list[Message], timeout: float) -> Iterable[Message]:
        current, mailbox = self._round, self._mailbox
        assert current is not None
        assert mailbox is not None
        if current.cohort is not None and self._opened().cohort is None:
            return []  # too few have checked in
        mailbox.clear()
        oversampling = self._oversampling if current.cohort is None else 1.0
        return replies(
            mailbox, messages, current.asked, lambda: self._wanted(current), self._messages, oversampling, timeout
        )

    def _wanted(self, current: Round) -> int:
        """Updates that may still come."""
        places = self._collected if current.cohort is None else len(current.cohort.nodes)
        return places - len(current.clients)

    def _answer(self, session: Session, current: Round, message: Message) -> Answer | None:
        """What the client says, where it can be true; raises where it shows that the directory is an older state."""
        answer = current.answer(message)
        if answer is not None and not session.trusts(answer):
            session.counts["false-claim"] += 1
            return None
        return answer

    def _look_through(self, session: Session, current: Round) -> None:
        """Replies that are there and not needed may show that the release to be made was made before."""
        for message in self._mailbox.replies() if self._mailbox is not None else ():
            if self._answer(session, current, message) is not None:
                session.counts["unused"] += 1

    def _identified(self, session: Session, current: Round, message: Message) -> tuple[Answer, str] | None:
        """What the client says, and its name in the ledger."""
        answer = self._answer(session, current, message)
        if answer is None:
            return None
        identity = self._selection.identify(message.metadata.src_node_id, answer)
        if identity is None:
            session.counts["other-name"] += 1
            return None
        return answer, session.name(identity)

    def _take(self, session: Session, current: Round, message: Message) -> None:
        found = self._identified(session, current, message)
        if found is not None:
            current.take(message, *found)

    def _suffices(self, session: Session, current: Round) -> bool:
        """Whether the release may be made."""
        if current.cohort is not None:
            return session.cohort is not None
        return len(current.clients) >= self._collected or self._when_short == "release"

    def _count_silent(self, session: Session, current: Round) -> None:
        """Clients with a place that did not reply in time, or were not found again after a restart of the server."""
        if current.cohort is not None and session.cohort is not None and self._mailbox is not None:
            lost = len(session.cohort) - len(current.cohort.nodes)
            session.counts["silent"] += len(self._mailbox) + lost

    def _release(self, session: Session, current: Round) -> None:
        """(sum + clip x noise) / goal, then the optimizer; the noise is that of the step, whoever came."""
        update: Arrays = {}
        for (name, total), noise in zip(current.total.items(), session.noise(), strict=True):
            # Added in the precision of the noise: digits of the sum beyond it would come out without any.
            noised = (total / self._clip_norm).astype(noise.dtype) + noise
            update[name] = self._clip_norm / self._collected * noised.astype(np.float64)
        state = session.state
        model, optimizer = self._optimizer.step(state.release, state.model, update, state.optimizer)
        session.release(model, optimizer, current.clients if session.cohort is None else session.cohort)

    def _give_up_after(self, failures: int) -> None:
        if failures < self._attempts:
            return
        session = self._opened()
        came = "checked in" if session.dropouts == "zero" else "sent an update"
        raise Refused(
            f"Release {session.state.release} failed {failures} times in a row: fewer than {self._collected} clients "
            f"that may take part {came}. What happened to replies: {dict(session.counts)}.",
            hint="wait for more clients, lower goal or separation, or use when_short='release'; nothing was released",
        )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _check.invalid("DPFTRL", name, f"one of {', '.join(allowed)}", value, "see the documentation")


def _evaluate(
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None, releases: int, result: Result
) -> None:
    found = evaluate_fn(releases, result.arrays) if evaluate_fn is not None else None
    if found is not None:
        result.evaluate_metrics_serverapp[releases] = found
