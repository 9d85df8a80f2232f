"""`DPFTRL`: Flower server strategy for DP-FTRL with correlated noise."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, final, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from antiphase import _check
from antiphase._bound import rounded_up
from antiphase._errors import InvalidArgument, Refused
from antiphase._federated import NO_LATTICE, Dropouts
from antiphase._lattice import rounded_strategy
from antiphase._participation import MinSeparation
from antiphase._plan import Plan
from antiphase._secret import Secret
from antiphase.flower._cohort import Cohort
from antiphase.flower._enforced_plan import enforced_plan, planned_participation
from antiphase.flower._lattice_plan import plan_to_run
from antiphase.flower._mailbox import PULL_SIZE, Mailbox, collect_replies
from antiphase.flower._optimizer import ServerOptimizer, optimizer_for
from antiphase.flower._round import ReplyRules, Round, mean_metrics
from antiphase.flower._selection import Identity, NodeSelection
from antiphase.flower._session import Session
from antiphase.flower._shortage import Shortage
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
SMALLEST_CLIP = 1e-100  # squares of smaller entries underflow in float64, so updates would not be clipped
SHORTEST_TIMEOUT = 1e-3  # Flower refuses messages with a lifetime of zero
T = TypeVar("T", bound=str)
WhenShort = Literal["retry", "release"]


@final
class DPFTRL(Strategy):
    """Federated averaging with correlated noise, for clients that are not always available.

    A release is one new model. In release t of a plan with clipping norm c and noising matrix N, the server computes

        update_t = (sum of the clipped updates of `goal` clients + c (N z)_t) / goal

    and passes update_t to the server optimizer. Here z holds independent normals with standard deviation `noise_std`.

    Every update is clipped again on the server. A client that took part in release t may take part again in release
    t + separation or later; the server enforces this with its own record. A release is made by one atomic rename of
    a file, before anything is broadcast. If the server is killed, run the same script again to resume.

    By default, a release begins with a check-in: the server asks clients whether they can take part. Their answers do
    not use client data, and decide who takes part. If a client crashes or does not reply after the check-in, it still
    counts as a participant, and its update is zero. With dropouts="replace", there is no check-in, and other clients
    replace those that drop out.

    **Guarantee**: the plan's guarantee holds for each client (`Problem.unit` says what a client represents), under the
    plan's adjacency, for all models that leave the server. The guarantee requires persistent client identities (see
    `identity`). `report` states the guarantee for the participation that was achieved.

    Args:
        plan: plan with `MinSeparation` participation. The plan's clipping norm bounds the update of a client.
        directory: directory of the server. It holds the secret and the record of who took part.
        goal: number of places in a release (clients that take part). The sum of the updates is divided by `goal`,
            however many updates arrive.
        optimizer: server optimizer; None for the optimizer that matches the plan's workload. A restarted server may
            use a different optimizer if that optimizer can continue from the stored state. The ledger does not record
            the optimizer.
        identity: how the server's record identifies clients. "pseudonym": by a random name that `participation_mod`
            keeps on the client's disk. "key": by the node's authentication key; the SuperLink must authenticate its
            SuperNodes. Node ids cannot be used, because Flower may assign new ids at every start.
        separation: minimum distance between two releases that a client takes part in; None for the plan's separation.
            With a smaller separation, clients may return sooner than planned, and the report states the privacy cost.
        dropouts: rule for a client that was asked to train and then fails or does not reply in time. "zero": the client
            keeps its place, uses up a participation, and contributes zero. Its failure therefore cannot change who else
            takes part. "replace": another client gets the place. The guarantee then assumes that crashes, kills and
            delays do not depend on the clients' data. The rule cannot change within a run. A run started by a version
            that did not record the rule keeps "replace". The report states the rule.
        oversampling: number of clients that are asked to check in (or to train, if dropouts="replace") for each place.
        when_short: what to do if fewer than `goal` clients check in (or fewer than `goal` updates arrive in time, if
            dropouts="replace"). "retry": release nothing, keep in memory what arrived, and ask more clients. "release":
            release the sum of the updates that arrived (possibly none), with the same noise and divisor.
        attempts: number of consecutive attempts with too few clients after which `start` raises `Refused`.
        wait: longest time in seconds to wait for `goal` eligible clients to connect. The clients then have as long
            again to check in. The server waits longer than that only while check-ins keep arriving.
        zero_above: an update counts as zero if an entry exceeds `zero_above` times the clipping norm in absolute value.
            If None, such updates are clipped like all others. This setting may change at a restart.
        raw_metrics: if True, the clients' own metrics are averaged and returned. They have no noise, and no guarantee
            covers them.
        simulated_goal: number of places in a release of a simulation with few clients. The sum of the updates is
            divided by `simulated_goal`, and the noise is scaled by simulated_goal / goal. The noise in the mean update
            is therefore the same as with `goal` clients. Such a run is not private, and no guarantee is ever stated for
            it.
        secret: secret of the run. If None, a new run generates a secret and stores it in the directory.
        lattice: kind of noise of a new run. On a lattice, updates are summed and noise is added in exact integers, so
            that the guarantee covers every bit of the released models (docs/lattice-noise.md). The coefficients of the
            strategy are then rounded, which does not increase epsilon. None uses a lattice if there is lattice noise
            for the plan, and floating point otherwise. True raises an error if there is no lattice noise for the plan.
            False uses floating point. A run keeps the kind of noise that it was started with, and the report states it.

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
        when_short: WhenShort = "retry",
        attempts: int = 10,
        wait: float = 60.0,
        zero_above: float | None = None,
        raw_metrics: bool = False,
        simulated_goal: int | None = None,
        secret: Secret | None = None,
        lattice: bool | None = None,
    ) -> None:
        planned = planned_participation(plan)
        _check.real(
            "DPFTRL",
            "clip_norm",
            plan.problem.clip_norm,
            SMALLEST_CLIP,
            1e300,
            "multiply the updates and the clipping norm by the same factor",
        )
        # The path is made absolute, because the working directory may change.
        self.directory, self._secret = Path(directory).absolute(), secret
        self.goal = _check.positive_integer("DPFTRL", "goal", goal, "pass the number of updates in a release")
        self._places = self.goal
        if simulated_goal is not None:
            self._places = _check.positive_integer("DPFTRL", "simulated_goal", simulated_goal)
        self._separation = planned.separation
        if separation is not None:
            self._separation = _check.positive_integer(
                "DPFTRL", "separation", separation, "use None for the plan's separation"
            )
        self._limit = planned.max_participations
        self._noise_scale = self._places / self.goal
        self._given, self._lattice = plan, _checked_lattice(plan, lattice)
        self.plan = self._enforced(plan)  # `start` may add a lattice, whose grid depends on the size of the model
        self._planned = {"separation": planned.separation, "limit": self._limit}
        identity = _one_of("identity", identity, get_args(Identity))
        self._dropouts: Dropouts = _one_of("dropouts", dropouts, get_args(Dropouts))
        self._when_short: WhenShort = _one_of("when_short", when_short, get_args(WhenShort))
        self._identity, self._raw_metrics = identity, bool(raw_metrics)
        self._oversampling = _check.real(
            "DPFTRL", "oversampling", oversampling, 1.0, 1e6, "1.3 asks 30% more clients than needed"
        )
        self._attempts = _check.positive_integer(
            "DPFTRL", "attempts", attempts, "use 1 to give up after the first failure"
        )
        self._wait = _check.real("DPFTRL", "wait", wait, 0.0, 1e9, "pass a number of seconds")
        self._zero_above = zero_above
        if zero_above is not None:
            _check.real("DPFTRL", "zero_above", zero_above, 1.0, 1e300, "100 is common; use None to clip all updates")
        self._optimizer = optimizer_for(plan.problem.workload) if optimizer is None else optimizer
        self._session: Session | None = None
        self._round: Round | None = None
        self._mailbox: Mailbox | None = None
        self._selection = NodeSelection(identity)
        self._unasked: list[int] = []  # nodes that can still be asked in this attempt
        self._content = RecordDict()
        self._timeout = self._ttl = 0.0  # time that clients have to train, and lifetime of a message; set by `start`

    def summary(self) -> None:
        """Log the settings, as Flower strategies do before the first round."""
        LOG.info("\t├──> Plan: %s, %d releases", type(self.plan.mechanism.strategy).__name__, self.plan.steps)
        LOG.info("\t├──> Clipping norm %g, noise_std %g", self._clip_norm, self.plan.mechanism.noise_std)
        LOG.info("\t├──> Noise: %s", "floating point" if self.plan.mechanism.lattice is None else "exact integers")
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
        """Start training, or continue from the last release in the directory, and return the result.

        Args:
            grid: Flower's grid.
            initial_arrays: model before the first release. A resumed run uses only its names, shapes and dtypes.
            num_rounds: training stops after this many releases, counted from the start of the run; None for all steps
                of the plan.
            timeout: time in seconds that clients have to train and reply. With dropouts="zero", a release waits this
                long if a client does not reply.
            train_config: configuration sent to the clients with every training task.
            evaluate_config: not used. Clients do not evaluate, because their metrics would have a privacy cost.
            evaluate_fn: called with the number of releases and the model, at the start and after each release. It
                should use only public data.
        """
        _check.real("DPFTRL.start", "timeout", timeout, SHORTEST_TIMEOUT, 1e9, "pass a number of seconds")
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
        # With dropouts="zero", pull replies one at a time, so that a malformed one cannot make the server lose another.
        size = 1 if session.dropouts == "zero" else PULL_SIZE
        self._timeout = self._ttl = float(timeout)
        self._mailbox = Mailbox(grid, session.counts, size)
        last = self.plan.steps if num_rounds is None else num_rounds
        if not 0 <= last <= self.plan.steps:
            must = f"between 0 and {self.plan.steps}, the steps of the plan"
            raise _check.invalid("DPFTRL.start", "num_rounds", must, last, "extend the plan with Plan.extend")
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
        """Run the check-in if dropouts="zero", and return the training tasks of the next release.

        Args:
            server_round: not used. Flower's round numbers start again with every process, but release indices do not.
            arrays: not used. The model on disk is broadcast.
            config: configuration sent to the clients with every training task.
            grid: Flower's grid.
        """
        session = self._opened()
        current = self._current_round(session)
        if current.cohort is None:
            self._content = self._task(session, "train", config)
            wanted = self._places - len(current.clients)
            self._unasked = self._nodes_to_ask(session, current, grid, wanted)
            return self._messages(math.ceil(wanted * self._oversampling))
        self._check_in(session, current, current.cohort, grid)
        if session.cohort is None:
            if current.cohort.missing:
                self._shortage(session, current).explain()
                if self._when_short == "retry":
                    return []
            session.fix_cohort(current.cohort.names, current.cohort.nodes)
        self._content, self._unasked = self._task(session, "train", config), current.cohort.nodes
        self._ttl = self._timeout
        return self._messages(len(self._unasked))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the release from the replies and return (model, metrics), or (None, None) if too few replies arrived.

        If a check-in has fixed the cohort (the clients that take part), the release is always made: all clients of the
        cohort count as having taken part, whether they replied or not.

        Args:
            server_round: not used.
            replies: replies to the training tasks. They are read one at a time until enough updates have arrived.
        """
        session, current = self._opened(), self._round
        if current is None:
            raise Refused("aggregate_train was called before configure_train.", hint="call start, which calls both")
        for message in replies:
            self._add_reply(session, current, message)
            if self._wanted(current) <= 0:
                break
        if current.cohort is None and len(current.clients) < self._places:
            self._shortage(session, current).explain()
        if not self._can_release(session, current):
            session.counts["failed attempts"] += 1
            return None, None
        self._check_unused_replies(session, current)
        self._count_silent(session, current)
        self._round = None
        self._release(session, current)
        return to_array_record(session.state.model), mean_metrics(current.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages, because metrics that clients compute on their data would have a privacy cost."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None, since clients do not evaluate."""
        return None

    @property
    def _clip_norm(self) -> float:
        return self.plan.problem.clip_norm

    def _enforced(self, plan: Plan) -> Plan:
        return enforced_plan(plan, MinSeparation(self._separation, self._limit), self._noise_scale)

    def _open(self, initial: ArrayRecord) -> Session:
        settings: dict[str, Any] = {
            "clip_norm": self._clip_norm,
            "dropouts": self._dropouts,
            "goal": self.goal,
            "identity": self._identity,
            "noise_scale": self._noise_scale,
            "planned": self._planned,
            "raw_metrics": self._raw_metrics,
        }
        model = to_arrays(initial)
        if not all(np.isfinite(value).all() for value in model.values()):
            raise InvalidArgument("The initial model has NaN or infinite entries.", hint="check its initialization")
        parameters = sum(value.size for value in model.values())
        self.plan, no_lattice = plan_to_run(
            self._given, self.directory / "run", parameters, self._enforced, self._places, self._lattice
        )
        if no_lattice:
            settings[NO_LATTICE] = no_lattice
            if self._lattice is None:
                LOG.warning("Noise is in floating point, so the exact bits of models are not covered. %s", no_lattice)
        session = Session.open(self.plan, self.directory, settings, model, self._optimizer.init, self._secret)
        try:
            self._optimizer.check_state(session.state.optimizer)
        except BaseException:
            session.close()
            raise
        self._session = session
        if self._session.dropouts != self._dropouts:
            LOG.warning(
                "The run in %s was started by an older version, which always replaced clients that dropped out. The "
                "run continues with dropouts='replace'",
                self.directory,
            )
        return self._session

    def _opened(self) -> Session:
        if self._session is None:
            raise Refused("The strategy is not running.", hint="call start, which opens the directory")
        return self._session

    def _current_round(self, session: Session) -> Round:
        """Return the current round, including the updates that earlier attempts collected."""
        release, limit = session.state.release, self._limit or self.plan.steps
        if self._round is None:
            rules = ReplyRules(release, self._separation, limit, self._clip_norm, self._zero_above, self._raw_metrics)
            cohort = Cohort(self._places, session.cohort) if session.dropouts == "zero" else None
            lattice = session.run.plan.mechanism.lattice
            self._round = Round(rules, session.state.model, session.participants, session.counts, cohort, lattice)
            if self._mailbox is not None:
                self._mailbox.clear()
        return self._round

    def _task(self, session: Session, phase: Phase, config: ConfigRecord) -> RecordDict:
        """Return the content of a message for the next release.

        It contains the rollback token of the release, which is on disk before the message is sent. Clients return this
        random token later. If the server does not find it on disk then, the directory was restored from an older copy.
        """
        release, token = session.state.release, session.rollback_token()
        fields = (session.run.run_id, release, self._separation, self._clip_norm, self._raw_metrics)
        content = RecordDict({CONFIG: config, TAG: to_record(Task(*fields, token, phase))})
        if phase == "train":
            content[ARRAYS] = to_array_record(session.state.model)
        return content

    def _nodes_to_ask(self, session: Session, current: Round, grid: Grid, wanted: int) -> list[int]:
        def allowed(identity: bytes) -> bool:
            return current.may_enter(session.name(identity))

        asked = set(current.asked.values())
        return self._selection.candidates(grid, allowed, wanted, self._wait, asked, set(session.nodes))

    def _check_in(self, session: Session, current: Round, cohort: Cohort, grid: Grid) -> None:
        """Let clients check in until all places are taken or the time is up.

        The places go to clients that are available, eligible and quick to answer, before any client has trained.
        """
        if not cohort.missing:
            return
        self._content = self._task(session, "check-in", ConfigRecord())
        self._ttl = max(self._wait, self._timeout)  # clients have `wait` seconds to check in
        self._unasked = self._nodes_to_ask(session, current, grid, cohort.missing)
        messages = self._messages(math.ceil(cohort.missing * self._oversampling))
        mailbox, oversampling = self._mailbox, self._oversampling
        assert mailbox is not None
        for message in collect_replies(
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
            self._check_unused_replies(session, current)

    def _messages(self, count: int) -> list[Message]:
        nodes, self._unasked = self._unasked[:count], self._unasked[count:]
        return [Message(self._content, node, MessageType.TRAIN, ttl=self._ttl) for node in nodes]

    def _replies(self, messages: list[Message], timeout: float) -> Iterable[Message]:
        current, mailbox = self._round, self._mailbox
        assert current is not None
        assert mailbox is not None
        if current.cohort is not None and self._opened().cohort is None:
            return []  # too few clients checked in
        mailbox.clear()
        oversampling = self._oversampling if current.cohort is None else 1.0
        return collect_replies(
            mailbox, messages, current.asked, lambda: self._wanted(current), self._messages, oversampling, timeout
        )

    def _wanted(self, current: Round) -> int:
        """Return how many updates are still missing."""
        places = self._places if current.cohort is None else len(current.cohort.nodes)
        return places - len(current.clients)

    def _answer(self, session: Session, current: Round, message: Message) -> Answer | None:
        """Return a client's answer, or None if it is invalid or contains false claims about earlier tasks.

        Raises `Corrupted` if the rollback tokens in the answer show that the directory was restored from an older copy.
        """
        answer = current.answer(message)
        if answer is not None and not session.trusts(answer):
            session.counts["false-claim"] += 1
            return None
        return answer

    def _check_unused_replies(self, session: Session, current: Round) -> None:
        """Read replies that are not needed: their rollback tokens may show that this release was already made."""
        for message in self._mailbox.replies() if self._mailbox is not None else ():
            if self._answer(session, current, message) is not None:
                session.counts["unused"] += 1

    def _identified(self, session: Session, current: Round, message: Message) -> tuple[Answer, str] | None:
        """Return a client's answer and its name in the ledger, or None if the answer cannot be used."""
        answer = self._answer(session, current, message)
        if answer is None:
            return None
        current.heard[message.metadata.src_node_id] = answer.client
        identity = self._selection.identify(message.metadata.src_node_id, answer)
        if identity is None:
            session.counts["other-name"] += 1
            return None
        return answer, session.name(identity)

    def _add_reply(self, session: Session, current: Round, message: Message) -> None:
        found = self._identified(session, current, message)
        if found is not None:
            current.add_reply(message, *found)

    def _can_release(self, session: Session, current: Round) -> bool:
        """Return whether there are enough clients to make the release."""
        if current.cohort is not None:
            return session.cohort is not None
        return len(current.clients) >= self._places or self._when_short == "release"

    def _count_silent(self, session: Session, current: Round) -> None:
        """Count clients that have a place, but did not reply in time or did not check in again after a restart."""
        if current.cohort is not None and session.cohort is not None and self._mailbox is not None:
            lost = len(session.cohort) - len(current.cohort.nodes)
            session.counts["silent"] += len(self._mailbox) + lost

    def _release(self, session: Session, current: Round) -> None:
        """Compute the noisy mean update (sum + clip_norm * noise) / places, and make the release from it."""
        update: Arrays = {}
        lattice = session.run.plan.mechanism.lattice
        if lattice is not None:  # `run.release` adds the noise in exact integers and returns the noisy sum
            released = session.run.release(session.state.release, current.total.values())
            update = {
                name: value / self._places for name, value in zip(current.total, lattice.value(released), strict=True)
            }
            return self._finish(session, current, update)
        for (name, total), noise in zip(current.total.items(), session.noise(), strict=True):
            # Add in the precision of the noise. In higher precision, the low bits of the sum would have no noise.
            noisy = (total / self._clip_norm).astype(noise.dtype) + noise
            update[name] = self._clip_norm / self._places * noisy.astype(np.float64)
        return self._finish(session, current, update)

    def _finish(self, session: Session, current: Round, update: Arrays) -> None:
        """Pass a noisy mean update to the optimizer, and store the release."""
        state = session.state
        model, optimizer = self._optimizer.step(state.release, state.model, update, state.optimizer)
        session.release(model, optimizer, current.clients if session.cohort is None else session.cohort)

    def _shortage(self, session: Session, current: Round) -> Shortage:
        return Shortage(
            release=current.rules.release,
            separation=self._separation,
            places=self._places,
            present=len(current.clients if current.cohort is None else current.cohort.nodes),
            connected=self._selection.connected,
            eligible=self._selection.eligible,
            asked=len(set(current.asked.values())),
            pseudonyms=dict(current.heard),
            counts=dict(session.counts),
        )

    def _give_up_after(self, failures: int) -> None:
        if failures >= self._attempts:
            session = self._opened()
            what = "checked in" if session.dropouts == "zero" else "sent an update"
            raise self._shortage(session, self._current_round(session)).gave_up(failures, what)


def _checked_lattice(plan: Plan, lattice: bool | None) -> bool | None:
    """Return `lattice`. Raise an error if it contradicts the plan."""
    if lattice is not None and not isinstance(lattice, bool):
        raise _check.invalid("DPFTRL", "lattice", "True, False or None", lattice, "omit it to let the strategy decide")
    if lattice is False and plan.mechanism.lattice is not None:
        raise InvalidArgument(
            "DPFTRL got lattice=False, but the plan has a lattice.", hint="plan without lattice=True, or omit lattice"
        )
    if lattice:
        rounded_strategy(plan.mechanism.strategy)  # raises an error if the strategy has no lattice noise
    return lattice


def _one_of(name: str, value: object, allowed: tuple[T, ...]) -> T:
    return _check.one_of("DPFTRL", name, value, allowed, f"omit it for {allowed[0]!r}")


def _evaluate(
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None, releases: int, result: Result
) -> None:
    found = evaluate_fn(releases, result.arrays) if evaluate_fn is not None else None
    if found is not None:
        result.evaluate_metrics_serverapp[releases] = found
