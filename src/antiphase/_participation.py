"""Participation: what is promised about the steps in which one example takes part.

A deterministic participation is a set of allowed patterns, each a set of steps (numbered from 0). A random
one draws the pattern; `worst_case` is the deterministic participation that it satisfies with certainty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise, product
from typing import TYPE_CHECKING, final

from antiphase import _check
from antiphase._check import invalid
from antiphase._record import record

if TYPE_CHECKING:
    from antiphase._samplers import Sampler
    from antiphase._secret import Secret

Pattern = tuple[int, ...]


class Participation(ABC):
    """A promise about how one example meets the steps."""

    @property
    @abstractmethod
    def worst_case(self) -> Participation:
        """The deterministic participation that always holds; a deterministic one returns itself."""

    def sampler(self, examples: int, steps: int, secret: Secret) -> Sampler:
        """The sampler whose batches keep this promise: `sampler.batch(step)` gives (indices, mask).

        **Guarantee**: see the sampler's own; `independent_assignment` says whether add-or-remove
        adjacency is supported beside zero-out.

        Args:
            examples: how many units there are to sample from, numbered from 0; users for user-level privacy.
            steps: how many batches there are.
            secret: decides the batches; one secret for one run, or `secret.child(run)`.

        >>> from antiphase._secret import Secret
        >>> SingleParticipation().sampler(examples=4, steps=4, secret=Secret.insecure(1)).batch(0)
        Batch(indices=array([2]), mask=array([ True]))
        """
        from antiphase._samplers import sampler_for

        return sampler_for(self, examples, steps, secret)


class Deterministic(Participation):
    """A participation given by its set of allowed patterns; every subset of a pattern is allowed too."""

    @property
    def worst_case(self) -> Deterministic:
        """Itself."""
        return self

    @abstractmethod
    def patterns(self, steps: int) -> Iterator[Pattern]:
        """All largest patterns within `steps` steps. Their number can be exponential: for small cases."""

    @abstractmethod
    def largest_count(self, steps: int) -> int:
        """k, the largest number of participations within `steps` steps."""


@final
@record
class SingleParticipation(Deterministic):
    """Each example takes part in at most one step.

    >>> list(SingleParticipation().patterns(3))
    [(0,), (1,), (2,)]
    """

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """One pattern a step."""
        return ((t,) for t in range(steps))

    def largest_count(self, steps: int) -> int:
        """1."""
        return 1


@final
@record
class EveryStep(Deterministic):
    """Each example may take part in every step: full-batch gradient descent.

    >>> list(EveryStep().patterns(3))
    [(0, 1, 2)]
    """

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """The one pattern of all steps."""
        return iter([tuple(range(steps))])

    def largest_count(self, steps: int) -> int:
        """All steps."""
        return steps


@final
@record
class FixedEpochs(Deterministic):
    """(k, b)-participation: the same order in every epoch, so an example meets steps i, i + b, i + 2b, ...

    Fewer steps than epochs x steps_per_epoch truncate the patterns; more steps raise.

    Args:
        epochs: k.
        steps_per_epoch: b.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), section 2.

    >>> list(FixedEpochs(2, 2).patterns(4))
    [(0, 2), (1, 3)]
    """

    epochs: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _check_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """The residue classes modulo steps_per_epoch."""
        _check_fits(self, steps)
        b = self.steps_per_epoch
        return (tuple(range(i, steps, b)) for i in range(min(b, steps)))

    def largest_count(self, steps: int) -> int:
        """ceil(steps / steps_per_epoch)."""
        _check_fits(self, steps)
        return -(-steps // self.steps_per_epoch)


@final
@record
class ShuffledEpochs(Deterministic):
    """Once an epoch, anywhere in it: what a data loader that reshuffles every epoch does.

    Two participations may be in adjacent steps (the last of one epoch, the first of the next).

    Args:
        epochs: k.
        steps_per_epoch: b.

    >>> list(ShuffledEpochs(2, 2).patterns(4))
    [(0, 2), (0, 3), (1, 2), (1, 3)]
    """

    epochs: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _check_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """One step from each (possibly truncated) epoch."""
        _check_fits(self, steps)
        b = self.steps_per_epoch
        return product(*(range(start, min(start + b, steps)) for start in range(0, steps, b)))

    def largest_count(self, steps: int) -> int:
        """ceil(steps / steps_per_epoch)."""
        _check_fits(self, steps)
        return -(-steps // self.steps_per_epoch)


@final
@record
class MinSeparation(Deterministic):
    """b-min-sep: two participations of an example are at least `separation` steps apart.

    An example that took part in step s is eligible again in step t when t >= s + separation.

    Args:
        separation: b >= 1; the difference of two step numbers, so 1 allows every step.
        max_participations: k; by default ceil(steps / separation).

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
        """All patterns to which no step can be added."""
        return (p for p in self._extend((), 0, steps) if self._is_largest(p, steps))

    def largest_count(self, steps: int) -> int:
        """The smaller of max_participations and ceil(steps / separation)."""
        fit = -(-steps // self.separation)
        return fit if self.max_participations is None else min(fit, self.max_participations)

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
        rate: sampling probability in (0, 1].
        max_batch: truncate and pad batches to this size; None keeps their random size.
    """

    rate: float
    max_batch: int | None = None

    def __post_init__(self) -> None:
        _check_rate(self)
        _check_max_batch(self)

    @property
    def worst_case(self) -> EveryStep:
        """An example may be drawn in every step."""
        return EveryStep()


@final
@record
class CyclicPoisson(Participation):
    """Examples are split once into groups; step t draws from group t mod groups with probability `rate`.

    Args:
        groups: number of groups, at least the number of bands of the strategy.
        rate: sampling probability within the group, in (0, 1].
        max_batch: truncate and pad batches to this size; None keeps their random size.

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
        """Participations are a multiple of `groups` apart, hence at least that far."""
        return MinSeparation(self.groups)


@final
@record
class FixedSize(Participation):
    """Step t draws `batch_size` examples without replacement from group t mod groups.

    Args:
        groups: number of groups; 1 draws from all examples.
        batch_size: examples in every batch.
    """

    groups: int
    batch_size: int

    def __post_init__(self) -> None:
        _store_integer(self, "groups", "1 group draws from all examples")
        _store_integer(self, "batch_size")

    @property
    def worst_case(self) -> MinSeparation:
        """Participations are a multiple of `groups` apart, hence at least that far."""
        return MinSeparation(self.groups)


@final
@record
class BallsInBins(Participation):
    """Each example draws one bin, once, on its own; step t of every epoch processes bin t.

    Args:
        epochs: k.
        steps_per_epoch: number of bins, b.
        max_batch: truncate and pad batches to this size; None keeps their random size.

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
        """Bins are kept for all epochs, so participations are exactly one epoch apart."""
        return FixedEpochs(self.epochs, self.steps_per_epoch)


@final
@record
class PoissonMinSeparation(Participation):
    """An example that has waited `separation` steps joins each step with probability `rate`.

    Without a warm start every example is eligible in step 0, so the first batches are larger than the
    later ones. With a warm start each example begins in the stationary state, as if training had gone on
    for ever: it is taken in every step with probability rate / (1 + (separation - 1) rate).

    Args:
        separation: b >= 1.
        rate: probability for an eligible example, in (0, 1].
        max_batch: truncate and pad batches to this size; None keeps their random size.
        warm_start: begin in the stationary state.

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
        """Participations are at least `separation` apart."""
        return MinSeparation(self.separation)


# Numbers are stored as Python's own: in arithmetic with a NumPy float16 a rate has three digits on its way to epsilon,
# and a small NumPy integer wraps around.


def _store_integer(self: Participation, name: str, hint: str = "counts start at 1") -> None:
    value = _check.positive_integer(type(self).__name__, name, getattr(self, name), hint)
    object.__setattr__(self, name, value)


def _check_epochs(self: FixedEpochs | ShuffledEpochs | BallsInBins) -> None:
    _store_integer(self, "epochs")
    _store_integer(self, "steps_per_epoch")


def _check_fits(self: FixedEpochs | ShuffledEpochs, steps: int) -> None:
    if steps > self.epochs * self.steps_per_epoch:
        raise invalid(
            type(self).__name__,
            "epochs",
            f"enough for {steps} steps at {self.steps_per_epoch} steps per epoch",
            self.epochs,
            f"use epochs={-(-steps // self.steps_per_epoch)}, or fewer steps",
        )


def _check_rate(self: Poisson | CyclicPoisson | PoissonMinSeparation) -> None:
    hint = "a probability; 0 would never use the data"
    object.__setattr__(self, "rate", _check.real(type(self).__name__, "rate", self.rate, 5e-324, 1.0, hint))


def _check_max_batch(self: Poisson | CyclicPoisson | BallsInBins | PoissonMinSeparation) -> None:
    if self.max_batch is not None:
        _store_integer(self, "max_batch", "None keeps the random batch size")
