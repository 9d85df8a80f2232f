"""Deterministic participations, each defined by the patterns (sets of steps) that it allows for an example."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, final

from antiphase._check import invalid
from antiphase._participation.base import Deterministic, Pattern, enough_epochs, store_count, store_epochs
from antiphase._record import record


@final
@record
class SingleParticipation(Deterministic):
    """Each example takes part in at most one step.

    >>> list(SingleParticipation().patterns(3))
    [(0,), (1,), (2,)]
    """

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield one pattern for each step, which contains only that step."""
        return ((t,) for t in range(steps))

    def largest_count(self, steps: int) -> int:
        """Return 1."""
        return 1

    def spacing(self, steps: int) -> int:
        """Return the number of steps."""
        return steps

    @property
    def max_participations(self) -> int:
        """Always 1."""
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
        """Yield a single pattern, which contains all steps."""
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
    """Examples have the same order in every epoch, so an example takes part in steps i, i + b, i + 2b, and so on.

    The literature calls this (k, b)-participation.

    If a run has fewer than epochs x steps_per_epoch steps, the patterns end at its last step. If a run has more, an
    error is raised.

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
        store_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield one pattern for each step of an epoch: the steps that are congruent modulo steps_per_epoch."""
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
    def exact_spacing(self) -> int:
        """The epoch length, steps_per_epoch."""
        return self.steps_per_epoch

    @property
    def max_steps(self) -> int:
        """Number of steps in all epochs, epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> FixedEpochs:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=enough_epochs(self.epochs, self.steps_per_epoch, steps))

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import CycleSampler

        return CycleSampler

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"The order of the data is the same in all {self.epochs} epochs, so each {unit} takes part again after "
            f"exactly {self.steps_per_epoch} steps."
        )


@final
@record
class ShuffledEpochs(Deterministic):
    """Each example takes part once per epoch, in any step, as with a data loader that reshuffles in every epoch.

    Two participations can be in adjacent steps: the last step of one epoch and the first step of the next.

    Args:
        epochs: number of epochs, k.
        steps_per_epoch: number of steps in an epoch, b.

    >>> list(ShuffledEpochs(2, 2).patterns(4))
    [(0, 2), (0, 3), (1, 2), (1, 3)]
    """

    epochs: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        store_epochs(self)

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield every choice of one step from each epoch. The last epoch may be incomplete."""
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
        """Number of steps in all epochs, epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> ShuffledEpochs:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=enough_epochs(self.epochs, self.steps_per_epoch, steps))

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} takes part at most once in each of {self.epochs} epochs of {self.steps_per_epoch} steps, "
            "at any step of the epoch."
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import ShuffledEpochsSampler

        return ShuffledEpochsSampler


@final
@record
class MinSeparation(Deterministic):
    """Any two participations of an example are at least `separation` steps apart (b-min-sep in the literature).

    An example that took part in step s may take part again from step s + separation on.

    Args:
        separation: smallest difference between two steps in which an example takes part, b >= 1; 1 allows every step.
        max_participations: largest number of participations, k; by default ceil(steps / separation).

    Reference: Choquette-Choo et al. 2023 (amplified banded), section 3.

    >>> list(MinSeparation(2).patterns(4))
    [(0, 2), (0, 3), (1, 3)]
    """

    separation: int
    max_participations: int | None = None

    def __post_init__(self) -> None:
        store_count(self, "separation", "use 1 to allow participation in every step")
        if self.max_participations is not None:
            store_count(self, "max_participations", "use None for no limit")

    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield all maximal patterns, to which no further step can be added."""
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
            f"Any two participations of one {unit} are at least {self.separation} steps apart, and each {unit} takes "
            f"part at most {self.largest_count(steps)} times."
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


def _check_fits(self: FixedEpochs | ShuffledEpochs, steps: int) -> None:
    if steps > self.max_steps:
        raise invalid(
            type(self).__name__,
            "epochs",
            f"enough for {steps} steps at {self.steps_per_epoch} steps per epoch",
            self.epochs,
            f"use epochs={enough_epochs(self.epochs, self.steps_per_epoch, steps)}, or fewer steps",
        )
