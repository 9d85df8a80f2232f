"""Base classes of participations, and checks of their fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from antiphase import _check
from antiphase._errors import NotProved

if TYPE_CHECKING:
    from antiphase._samplers import Sampler
    from antiphase._secret import Secret

Pattern = tuple[int, ...]  # the steps in which an example takes part, in ascending order
SMALLEST_RATE = 5e-324  # the smallest positive float


class Participation(ABC):
    """A promise about the steps in which one example takes part."""

    @property
    @abstractmethod
    def worst_case(self) -> Deterministic:
        """A deterministic participation that allows every pattern that can occur; `self` if it is deterministic."""

    @abstractmethod
    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size, before `max_batch` truncates any batch.

        Args:
            examples: number of examples.
            steps: number of steps of the run.
        """

    @abstractmethod
    def describe(self, unit: str, steps: int) -> str:
        """Return one or two sentences that describe the promise, for reports.

        Args:
            unit: the unit of privacy, such as "example" or "user".
            steps: number of steps of the run.
        """

    @property
    def max_batch(self) -> int | None:
        """Fixed size to which batches are truncated or padded; None if batches keep their size."""
        return None

    @property
    def max_steps(self) -> int | None:
        """Number of steps that the promise covers; None if there is no limit."""
        return None

    @property
    def sampling_groups(self) -> int | None:
        """Number of groups, if groups of examples take turns and each step draws a sample from one; otherwise None."""
        return None

    def step_probability(self) -> float:
        """Return an upper bound on the probability that a given example takes part in a given step.

        The bound is 1 for participations that do not draw examples independently of each other.
        """
        return 1.0

    def distinct_batches(self, steps: int) -> int:
        """Return an upper bound on the number of distinct batches. It is below `steps` if the batches repeat."""
        return steps

    def for_steps(self, steps: int) -> Participation:
        """Return this participation, with more epochs if `steps` steps need them."""
        return self

    def sampler(self, examples: int, steps: int, secret: Secret) -> Sampler:
        """Return a sampler whose batches keep this promise: `sampler.batch(step)` returns (indices, mask).

        **Guarantee**: see the docstring of the sampler's class. All samplers support zero-out adjacency;
        `sampler.independent_assignment` says whether the returned sampler also supports add-or-remove.

        Args:
            examples: number of examples to sample from, or of users for user-level privacy. They are numbered from 0.
            steps: number of batches.
            secret: determines the batches. Use a new secret for each run, such as `secret.child(run_id)`.

        >>> from antiphase import Secret, SingleParticipation
        >>> SingleParticipation().sampler(examples=4, steps=4, secret=Secret.insecure(1)).batch(0)
        Batch(indices=array([2]), mask=array([ True]))
        """
        return self._sampler_class()(self, examples, steps, secret)

    def _sampler_class(self) -> type[Any]:
        """Return the sampler class for this participation."""
        raise NotProved(
            f"There is no sampler for {type(self).__name__}.",
            hint="use one of the participations in antiphase; each of them has a sampler",
        )


class Deterministic(Participation):
    """A participation that is defined by the patterns (sets of steps) in which an example may take part.

    Every subset of an allowed pattern is also allowed.
    """

    @property
    def worst_case(self) -> Deterministic:
        """The participation itself."""
        return self

    @abstractmethod
    def patterns(self, steps: int) -> Iterator[Pattern]:
        """Yield all maximal patterns: no step can be added to them. Their number can be exponential in `steps`."""

    @abstractmethod
    def largest_count(self, steps: int) -> int:
        """Return k, the largest number of participations of one example within `steps` steps."""

    @abstractmethod
    def spacing(self, steps: int) -> int:
        """Return the nominal number of steps between participations: the epoch length or the minimum separation."""

    @property
    def exact_spacing(self) -> int:
        """The epoch length if participations of an example are always exactly one epoch apart; otherwise 1."""
        return 1

    @property
    def max_participations(self) -> int | None:
        """Largest number of participations of one example for any number of steps; None if there is no limit."""
        return None

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the average batch size if every example takes part once every `spacing` steps."""
        return examples * (1 / self.spacing(steps))


# Fields are stored as Python ints and floats. Epsilon computed from a NumPy float16 would have only three correct
# digits, and small NumPy integers can overflow.


def store_count(self: Participation, name: str, hint: str = "counts start at 1") -> None:
    """Check a field that holds a positive integer, and store it as a Python int."""
    value = _check.positive_integer(type(self).__name__, name, getattr(self, name), hint)
    object.__setattr__(self, name, value)


def store_rate(self: Participation, rate: float) -> None:
    """Check the field `rate`, and store it as a Python float."""
    hint = "pass a sampling probability above 0; a rate of 0 would use no data"
    object.__setattr__(self, "rate", _check.real(type(self).__name__, "rate", rate, SMALLEST_RATE, 1.0, hint))


def store_max_batch(self: Participation) -> None:
    """Check the field `max_batch`, which may be None."""
    if self.max_batch is not None:
        store_count(self, "max_batch", "use None to keep the random batch size")


def store_epochs(self: Participation) -> None:
    """Check the fields `epochs` and `steps_per_epoch`."""
    store_count(self, "epochs")
    store_count(self, "steps_per_epoch")


def enough_epochs(epochs: int, steps_per_epoch: int, steps: int) -> int:
    """Return `epochs`, or the number of epochs that `steps` steps need if that is more."""
    return max(epochs, -(-steps // steps_per_epoch))
