"""Random participations: the run draws its batches at random and keeps them secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

from antiphase._check import invalid
from antiphase._participation.base import (
    Participation,
    enough_epochs,
    store_count,
    store_epochs,
    store_max_batch,
    store_rate,
)
from antiphase._participation.deterministic import EveryStep, FixedEpochs, MinSeparation
from antiphase._record import record

_DRAWN_BY_THE_RUN = "The run draws the batches itself and keeps their contents secret."


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
        store_rate(self, self.rate)
        store_max_batch(self)

    @property
    def worst_case(self) -> EveryStep:
        """`EveryStep`: an example can be drawn in every step."""
        return EveryStep()

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * self.rate

    @property
    def sampling_groups(self) -> int:
        """1: every step draws from all examples."""
        return 1

    def step_probability(self) -> float:
        """Return the rate."""
        return self.rate

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"In every step, each {unit} is drawn independently with probability {self.rate:.6g}. {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import PoissonSampler

        return PoissonSampler


@final
@record
class CyclicPoisson(Participation):
    """Poisson sampling from groups that take turns.

    Each example is assigned to a random group once, at the start. In step t, each example of group t mod groups is
    drawn independently with probability `rate`.

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
        store_count(self, "groups", "use 1 group for plain Poisson sampling")
        store_rate(self, self.rate)
        store_max_batch(self)

    @property
    def worst_case(self) -> MinSeparation:
        """`MinSeparation(groups)`: the distance between participations is a multiple of `groups`."""
        return MinSeparation(self.groups)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * (self.rate / self.groups)

    @property
    def sampling_groups(self) -> int:
        """Number of groups."""
        return self.groups

    def step_probability(self) -> float:
        """Return the rate."""
        return self.rate

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} is assigned to one of {self.groups} groups. The groups take turns, and each step draws every "
            f"{unit} of one group independently with probability {self.rate:.6g}."
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
        store_count(self, "groups", "use 1 group to draw from all examples")
        store_count(self, "batch_size")

    @property
    def worst_case(self) -> MinSeparation:
        """`MinSeparation(groups)`: participations are a multiple of `groups` steps apart."""
        return MinSeparation(self.groups)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return batch_size, the size of every batch."""
        return float(self.batch_size)

    @property
    def sampling_groups(self) -> int:
        """Number of groups."""
        return self.groups

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} is assigned to one of {self.groups} group(s). The groups take turns, and each step draws "
            f"{self.batch_size} {unit}s of one group without replacement."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import FixedSizeSampler

        return FixedSizeSampler


@final
@record
class BallsInBins(Participation):
    """Each example is assigned once to a uniformly random step of the epoch and keeps it in all epochs.

    The steps of an epoch are the bins, and the examples are the balls.

    Args:
        epochs: number of epochs, k.
        steps_per_epoch: number of steps in an epoch, which is the number of bins, b.
        max_batch: size to which batches are truncated and padded; None keeps their random size.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), section 3.
    """

    epochs: int
    steps_per_epoch: int
    max_batch: int | None = None

    def __post_init__(self) -> None:
        store_epochs(self)
        store_max_batch(self)

    @property
    def worst_case(self) -> FixedEpochs:
        """`FixedEpochs`: examples keep their bin, so participations are exactly one epoch apart."""
        return FixedEpochs(self.epochs, self.steps_per_epoch)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch."""
        return examples * (1 / self.steps_per_epoch)

    @property
    def max_steps(self) -> int:
        """Number of steps in all epochs, epochs x steps_per_epoch."""
        return self.epochs * self.steps_per_epoch

    def for_steps(self, steps: int) -> BallsInBins:
        """Return the same promise with enough epochs for `steps` steps."""
        return replace(self, epochs=enough_epochs(self.epochs, self.steps_per_epoch, steps))

    def step_probability(self) -> float:
        """Return 1 / steps_per_epoch."""
        return 1.0 / self.steps_per_epoch

    def distinct_batches(self, steps: int) -> int:
        """Return steps_per_epoch: every epoch repeats the same batches."""
        return self.steps_per_epoch

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"Each {unit} is assigned once, at random, to one of the {self.steps_per_epoch} steps of an epoch, and "
            f"keeps it for all {self.epochs} epochs."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import BallsInBinsSampler

        return BallsInBinsSampler


@final
@record
class PoissonMinSeparation(Participation):
    """Poisson sampling in which an example becomes eligible again `separation` steps after it was last drawn.

    In each step, every eligible example is drawn independently with probability `rate`. Without a warm start, all
    examples are eligible in step 0, so the first batches are larger than the later ones. A warm start draws at random
    when each example becomes eligible, from the stationary distribution, as if training had always been running. Every
    step then draws a given example with the same overall probability, rate / (1 + (separation - 1) * rate).

    Args:
        separation: smallest difference between two steps in which an example takes part, b >= 1.
        rate: sampling probability of an eligible example, in (0, 1].
        max_batch: size to which batches are truncated and padded; None keeps their random size.
        warm_start: whether to use a warm start.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification).
    """

    separation: int
    rate: float
    max_batch: int | None = None
    warm_start: bool = False

    def __post_init__(self) -> None:
        store_count(self, "separation")
        store_rate(self, self.rate)
        store_max_batch(self)
        if not isinstance(self.warm_start, bool):
            raise invalid(
                "PoissonMinSeparation", "warm_start", "True or False", self.warm_start, "use False for a cold start"
            )

    @property
    def worst_case(self) -> MinSeparation:
        """`MinSeparation(separation)`: participations are at least `separation` steps apart."""
        return MinSeparation(self.separation)

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size in the stationary state, before `max_batch` truncates any batch."""
        return examples * (self.rate / (1 + (self.separation - 1) * self.rate))

    def step_probability(self) -> float:
        """Return the rate."""
        return self.rate

    def describe(self, unit: str, steps: int) -> str:
        """Return the promise in plain words."""
        return (
            f"In every step, each {unit} that was not drawn in the previous {self.separation - 1} steps is drawn "
            f"independently with probability {self.rate:.6g}."
            f" {_DRAWN_BY_THE_RUN}"
        )

    def _sampler_class(self) -> type[Any]:
        from antiphase._samplers import PoissonMinSeparationSampler

        return PoissonMinSeparationSampler
