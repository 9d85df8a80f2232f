"""Participation: which steps of a run one example may take part in.

A deterministic participation is a set of allowed patterns, each a set of steps (numbered from 0). A random
participation draws the pattern; its `worst_case` is a deterministic participation that always holds.

Each class knows its batch size, its sampler, its wording for reports, and how it extends to a longer run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, final

from antiphase import _check
from antiphase._check import invalid
from antiphase._errors import NotProved
from antiphase._record import record

if TYPE_CHECKING:
    from antiphase._samplers import Sampler
    from antiphase._secret import Secret

Pattern = tuple[int, ...]
_DRAWN_BY_THE_RUN = "The run draws the batches itself; which examples they contain stays secret."


class Participation(ABC):
    """A promise about the steps in which one example takes part."""

    @property
    @abstractmethod
    def worst_case(self) -> Deterministic:
        """The deterministic participation that always holds; a deterministic participation returns itself."""

    @abstractmethod
    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch.

        Args:
            examples: number of examples.
            steps: number of steps of the run.
        """

    @abstractmethod
    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words.

        Args:
            unit: what is protected, such as "example" or "user".
            steps: number of steps of the run.
        """

    @property
    def max_batch(self) -> int | None:
        """Size to which batches are truncated and padded; None if they are not."""
        return None

    @property
    def max_steps(self) -> int | None:
        """Number of steps that the promise covers; None if there is no limit."""
        return None

    @property
    def sampling_groups(self) -> int | None:
        """Number of groups that take turns, where each step samples one group independently; None for the rest."""
        return None

    def for_steps(self, steps: int) -> Participation:
        """Return the same promise, with more epochs if `steps` steps need them."""
        return self

    def sampler(self, examples: int, steps: int, secret: Secret) -> Sampler:
        """Return the sampler whose batches keep this promise: `sampler.batch(step)` gives (indices, mask).

        **Guarantee**: see the sampler's own; `independent_assignment` says whether add-or-remove
        adjacency is supported beside zero-out.

        Args:
            examples: number of units to sample from, numbered from 0; users for user-level privacy.
            steps: number of batches.
            secret: determines the batches; use one secret per run, or `secret.child(run)`.

        >>> from antiphase._secret import Secret
        >>> SingleParticipation().sampler(examples=4, steps=4, secret=Secret.insecure(1)).batch(0)
        Batch(indices=array([2]), mask=array([ True]))
        """
        return self._sampler_class()(self, examples, steps, secret)

    def _sampler_class(self) -> type[Any]:
        """Return the class of sampler that keeps this promise."""
        raise NotProved(
            f"There is no sampler that keeps the promise of {type(self).__name__}.",
            hint="use one of the library's participations; their samplers are tested against them",
        )


class Deterministic(Participation):
    """A participation given by its set of allowed patterns; every subset of a pattern is allowed too."""

    @property
    def worst_case(self) -> Deterministic:
        """The participation itself."""
        return self

    @abstractmethod
    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield all maximal patterns within `steps` steps. There can be exponentially many: for small cases only."""

    @abstractmethod
    def largest_count(self, steps: int) -> int:
        """Return k, the largest number of participations within `steps` steps."""

    @abstractmethod
    def spacing(self, steps: int) -> int:
        """Return the steps from one participation to the next: the epoch length or the minimum separation."""

    @property
    def max_participations(self) -> int | None:
        """Limit on the participations of one example that holds for any number of steps; None if there is none."""
        return None

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the size of a batch when every example takes part once per `spacing` steps."""
        return examples * (1 / self.spacing(steps))


@final
@record
class SingleParticipation(Deterministic):
    """Each example takes part in at most one step.

    >>> list(SingleParticipation().patterns(3))
    [(0,), (1,), (2,)]
    """

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield one pattern per step."""
        return ((t,) for t in range(steps))

    def largest_count(self, steps: int) -> int:
        """Return 1."""
        return 1

    def spacing(self, steps: int) -> int:
        """Return the number of steps."""
        return steps

    @property
    def max_participations(self) -> int:
        """1."""
        return 1

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CycleSampler

        return CycleSampler

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return f"Each {unit} takes part in at most one step."


@final
@record
class EveryStep(Deterministic):
    """Each example may take part in every step: full-batch gradient descent.

    >>> list(EveryStep().patterns(3))
    [(0, 1, 2)]
    """

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield the one pattern of all steps."""
        return iter([tuple(range(steps))])

    def largest_count(self, steps: int) -> int:
        """Return the number of steps."""
        return steps

    def spacing(self, steps: int) -> int:
        """Return 1."""
        return 1

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CycleSampler

        return CycleSampler

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return f"Each {unit} may take part in every step."


@final
@record
class FixedEpochs(Deterministic):
    """(k, b)-participation: the same order in every epoch, so an example takes part in steps i, i + b, i + 2b, ...

    Fewer than epochs x steps_per_epoch steps truncate the patterns; more steps raise an error.

    Args:
        epochs: number of epochs, k.
        steps_per_epoch: number of steps in an epoch, b.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), section 2.

    >>> list(FixedEpochs(2, 2).patterns(4))
    [(0, 2), (1, 3)]
    """

    epochs: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _check_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield the residue classes modulo steps_per_epoch."""
        _check_fits(self, steps)
        b = self.steps_per_epoch
        return (tuple(range(i, steps, b)) for i in range(min(b, steps)))

    def largest_count(self, steps: int) -> int:
        """Return ceil(steps / steps_per_epoch)."""
        _check_fits(self, steps)
        return -(-steps // self.steps_per_epoch)

    def spacing(self, steps: int) -> int:
        """Return steps_per_epoch."""
        return self.steps_per_epoch

    @property
    def max_steps(self) -> int:
        """epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> FixedEpochs:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=_enough_epochs(self, steps))

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CycleSampler

        return CycleSampler

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"The data are in the same order in each of {self.epochs} epochs: each {unit} comes back after exactly "
            f"{self.steps_per_epoch} steps."
        )


@final
@record
class ShuffledEpochs(Deterministic):
    """Each example once per epoch, anywhere in the epoch, as a data loader that reshuffles every epoch does.

    Two participations can be in adjacent steps: the last of one epoch and the first of the next.

    Args:
        epochs: number of epochs, k.
        steps_per_epoch: number of steps in an epoch, b.

    >>> list(ShuffledEpochs(2, 2).patterns(4))
    [(0, 2), (0, 3), (1, 2), (1, 3)]
    """

    epochs: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _check_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield every choice of one step from each (possibly truncated) epoch."""
        _check_fits(self, steps)
        b = self.steps_per_epoch
        return product(*(range(start, min(start + b, steps)) for start in range(0, steps, b)))

    def largest_count(self, steps: int) -> int:
        """Return ceil(steps / steps_per_epoch)."""
        _check_fits(self, steps)
        return -(-steps // self.steps_per_epoch)

    def spacing(self, steps: int) -> int:
        """Return steps_per_epoch."""
        return self.steps_per_epoch

    @property
    def max_steps(self) -> int:
        """epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> ShuffledEpochs:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=_enough_epochs(self, steps))

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} takes part at most once in each of {self.epochs} epochs of {self.steps_per_epoch} steps, "
            "anywhere in the epoch."
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import ShuffledEpochsSampler

        return ShuffledEpochsSampler


@final
@record
class MinSeparation(Deterministic):
    """b-min-sep: two participations of an example are at least `separation` steps apart.

    An example that took part in step s is eligible again from step s + separation on.

    Args:
        separation: smallest difference of two step numbers, b >= 1; 1 allows every step.
        max_participations: largest number of participations, k; by default ceil(steps / separation).

    Reference: Choquette-Choo et al. 2023 (amplified banded), section 3.

    >>> list(MinSeparation(2).patterns(4))
    [(0, 2), (0, 3), (1, 3)]
    """

    separation: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        _store_integer(self, "separation", "1 allows participation in every step")
        if self.max_participations is not None:
            _store_integer(self, "max_participations", "None means no limit")

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield all patterns to which no step can be added."""
        return (p for p in self._extend((), 0, steps) if self._is_largest(p, steps))

    def largest_count(self, steps: int) -> int:
        """Return the smaller of max_participations and ceil(steps / separation)."""
        fit = -(-steps // self.separation)
        return fit if self.max_participations is None else min(fit, self.max_participations)

    def spacing(self, steps: int) -> int:
        """Return the separation."""
        return self.separation

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CycleSampler

        return CycleSampler

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Two participations of one {unit} are at least {self.separation} steps apart, and there are at most "
            f"{self.largest_count(steps)} of them."
        )

    def _extend(self, pattern: Pattern, first: int, steps: int) -> Iterator[Pattern]:
        yield pattern
        if len(pattern) < self.largest_count(steps):
            for t in range(first, steps):
                yield from self._extend((*pattern, t), t + self.separation, steps)

    def _is_largest(self, pattern: Pattern, steps: int) -> bool:
        if len(pattern) == self.max_participations:
            return True
        edges = (-self.separation, *pattern, steps - 1 + self.separation)
        return all(b - a < 2 * self.separation for a, b in pairwise(edges))


@final
@record
class Poisson(Participation):
    """Each example joins each step independently with probability `rate`.

    Args:
        rate: sampling probability, in (0, 1].
        max_batch: size to which batches are truncated and padded; None keeps their random size.
    """

    rate: float
    max_batch: int | None = None

    def __post_init__(self) -> None:
        _check_rate(self)
        _check_max_batch(self)

    @property
    def worst_case(self) -> EveryStep:
        """An example can be drawn in every step."""
        return EveryStep()

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * self.rate

    @property
    def sampling_groups(self) -> int:
        """1: every step draws from all examples."""
        return 1

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return f"In every step each {unit} is drawn independently with probability {self.rate:.6g}. {_DRAWN_BY_THE_RUN}"

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import PoissonSampler

        return PoissonSampler


@final
@record
class CyclicPoisson(Participation):
    """Examples are split once into groups; step t draws from group t mod groups with probability `rate`.

    Args:
        groups: number of groups, at least the number of bands of the strategy.
        rate: sampling probability within the group, in (0, 1].
        max_batch: size to which batches are truncated and padded; None keeps their random size.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Alg. 2.
    """

    groups: int
    rate: float
    max_batch: int | None = None

    def __post_init__(self) -> None:
        _store_integer(self, "groups", "1 group is plain Poisson sampling")
        _check_rate(self)
        _check_max_batch(self)

    @property
    def worst_case(self) -> MinSeparation:
        """Participations are a multiple of `groups` steps apart, hence at least `groups` steps."""
        return MinSeparation(self.groups)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * (self.rate / self.groups)

    @property
    def sampling_groups(self) -> int:
        """`groups`."""
        return self.groups

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"{self.groups} groups take turns; in its group's turn each {unit} is drawn independently with probability "
            f"{self.rate:.6g}."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CyclicPoissonSampler

        return CyclicPoissonSampler


@final
@record
class FixedSize(Participation):
    """Step t draws `batch_size` examples without replacement from group t mod groups.

    Args:
        groups: number of groups; 1 draws from all examples.
        batch_size: number of examples in every batch.
    """

    groups: int
    batch_size: int

    def __post_init__(self) -> None:
        _store_integer(self, "groups", "1 group draws from all examples")
        _store_integer(self, "batch_size")

    @property
    def worst_case(self) -> MinSeparation:
        """Participations are a multiple of `groups` steps apart, hence at least `groups` steps."""
        return MinSeparation(self.groups)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return batch_size, the size of every batch."""
        return float(self.batch_size)

    @property
    def sampling_groups(self) -> int:
        """`groups`."""
        return self.groups

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"{self.groups} group(s) take turns; each step draws {self.batch_size} {unit}s of one group without "
            "replacement."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import FixedSizeSampler

        return FixedSizeSampler


@final
@record
class BallsInBins(Participation):
    """Each example independently draws one bin, once; step t of every epoch processes bin t.

    Args:
        epochs: number of epochs, k.
        steps_per_epoch: number of bins, b.
        max_batch: size to which batches are truncated and padded; None keeps their random size.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), section 3.
    """

    epochs: int
    steps_per_epoch: int
    max_batch: int | None = None

    def __post_init__(self) -> None:
        _check_epochs(self)
        _check_max_batch(self)

    @property
    def worst_case(self) -> FixedEpochs:
        """Examples keep their bin for all epochs, so participations are exactly one epoch apart."""
        return FixedEpochs(self.epochs, self.steps_per_epoch)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * (1 / self.steps_per_epoch)

    @property
    def max_steps(self) -> int:
        """epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> BallsInBins:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=_enough_epochs(self, steps))

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} draws one of the {self.steps_per_epoch} steps of an epoch, once, and keeps it for all "
            f"{self.epochs} epochs."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import BallsInBinsSampler

        return BallsInBinsSampler


@final
@record
class PoissonMinSeparation(Participation):
    """Once `separation` steps have passed since its last step, an example joins each step with probability `rate`.

    Without a warm start every example is eligible in step 0, so the first batches are larger than the
    later ones. With a warm start each example begins in the stationary state, as if training had always
    been running: it is drawn in every step with probability rate / (1 + (separation - 1) rate).

    Args:
        separation: smallest difference of two step numbers, b >= 1.
        rate: sampling probability of an eligible example, in (0, 1].
        max_batch: size to which batches are truncated and padded; None keeps their random size.
        warm_start: whether to begin in the stationary state.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification).
    """

    separation: int
    rate: float
    max_batch: int | None = None
    warm_start: bool = False

    def __post_init__(self) -> None:
        _store_integer(self, "separation")
        _check_rate(self)
        _check_max_batch(self)
        if not isinstance(self.warm_start, bool):
            raise invalid(
                "PoissonMinSeparation", "warm_start", "True or False", self.warm_start, "False is a cold start"
            )

    @property
    def worst_case(self) -> MinSeparation:
        """Participations are at least `separation` steps apart."""
        return MinSeparation(self.separation)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size in the stationary state, before `max_batch` truncates any batch."""
        return examples * (self.rate / (1 + (self.separation - 1) * self.rate))

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"In every step each {unit} that was not drawn in the {self.separation - 1} steps before is drawn "
            f"independently with probability {self.rate:.6g}."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import PoissonMinSeparationSampler

        return PoissonMinSeparationSampler


# Numbers are stored as Python ints and floats: as a NumPy float16 a rate would enter epsilon with three digits, and a
# small NumPy integer would overflow.


def _store_integer(self: Participation, name: str, hint: str = "counts start at 1") -> None:
    value = _check.positive_integer(type(self).__name__, name, getattr(self, name), hint)
    object.__setattr__(self, name, value)


def _check_epochs(self: FixedEpochs | ShuffledEpochs | BallsInBins) -> None:
    _store_integer(self, "epochs")
    _store_integer(self, "steps_per_epoch")


def _enough_epochs(self: FixedEpochs | ShuffledEpochs | BallsInBins, steps: int) -> int:
    return max(self.epochs, -(-steps // self.steps_per_epoch))


def _check_fits(self: FixedEpochs | ShuffledEpochs, steps: int) -> None:
    if steps > self.max_steps:
        raise invalid(
            type(self).__name__,
            "epochs",
            f"enough for {steps} steps at {self.steps_per_epoch} steps per epoch",
            self.epochs,
            f"use epochs={_enough_epochs(self, steps)}, or fewer steps",
        )


def _check_rate(self: Poisson | CyclicPoisson | PoissonMinSeparation) -> None:
    hint = "it is a probability; with 0 the data would never be used"
    object.__setattr__(self, "rate", _check.real(type(self).__name__, "rate", self.rate, 5e-324, 1.0, hint))


def _check_max_batch(self: Poisson | CyclicPoisson | BallsInBins | PoissonMinSeparation) -> None:
    if self.max_batch is not None:
        _store_integer(self, "max_batch", "None keeps the random batch size")
