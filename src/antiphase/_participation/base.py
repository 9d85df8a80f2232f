"""The base classes of participations, and the checks that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from antiphase import _check
from antiphase._errors import NotProved

if TYPE_CHECKING:
    from antiphase._samplers import Sampler
    from antiphase._secret import Secret

Pattern = tuple[int, ...]
SMALLEST_RATE = 5e-324  # the smallest positive float


class Participation(ABC):
    """A promise about the steps in which one example takes part."""

    @property
    @abstractmethod
    def worst_case(self) -> Deterministic:
        """A deterministic participation that always holds; for a deterministic participation, itself."""

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
        """Number of groups that take turns, if each step samples one group independently; otherwise None."""
        return None

    def step_probability(self) -> float:
        """Return an upper bound on the probability that a step draws a given example, if draws are independent.

        It is 1 for participations that do not draw examples independently.
        """
        return 1.0

    def distinct_batches(self, steps: int) -> int:
        """Return the number of different batches drawn in `steps` steps, which is smaller if batches repeat."""
        return steps

    def for_steps(self, steps: int) -> Participation:
        """Return the same promise, with more epochs if `steps` steps need them."""
        return self

    def sampler(self, examples: int, steps: int, secret: Secret) -> Sampler:
        """Return the sampler whose batches keep this promise: `sampler.batch(step)` returns (indices, mask).

        **Guarantee**: see the sampler. Its `independent_assignment` says whether it supports add-or-remove adjacency
        in addition to zero-out.

        Args:
            examples: number of units to sample from, numbered from 0; users for user-level privacy.
            steps: number of batches.
            secret: determines the batches; use one secret per run, or `secret.child(run)`.

        >>> from antiphase import Secret, SingleParticipation
        >>> SingleParticipation().sampler(examples=4, steps=4, secret=Secret.insecure(1)).batch(0)
        Batch(indices=array([2]), mask=array([ True]))
        """
        return self._sampler_class()(self, examples, steps, secret)

    def _sampler_class(self) -> type[Any]:
        """Return the class of sampler that keeps this promise."""
        raise NotProved(
            f"There is no sampler that keeps the promise of {type(self).__name__}.",
            hint="use one of the participations in antiphase; each of them has a sampler",
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
        """Return the number of steps from one participation to the next: epoch length or minimum separation."""

    @property
    def exact_spacing(self) -> int:
        """Distance between participations if the promise fixes it, which is the epoch length; otherwise 1."""
        return 1

    @property
    def max_participations(self) -> int | None:
        """Largest number of participations of one example for any number of steps; None if there is no limit."""
        return None

    def expected_batch(self, examples: int, steps: int) -> float:
        """Return the batch size if every example takes part once every `spacing` steps."""
        return examples * (1 / self.spacing(steps))


# Numbers are stored as Python ints and floats: a rate stored as a NumPy float16 would give epsilon with three digits,
# and a small NumPy integer could overflow.


def store_count(self: Participation, name: str, hint: str = "counts start at 1") -> None:
    """Check a field that holds a positive integer, and store it as a Python int."""
    value = _check.positive_integer(type(self).__name__, name, getattr(self, name), hint)
    object.__setattr__(self, name, value)


def store_rate(self: Participation, rate: float) -> None:
    """Check the field `rate`, and store it as a Python float."""
    hint = "it is a probability; with 0, no data would be used"
    object.__setattr__(self, "rate", _check.real(type(self).__name__, "rate", rate, SMALLEST_RATE, 1.0, hint))


def store_max_batch(self: Participation) -> None:
    """Check the field `max_batch`, which may be None."""
    if self.max_batch is not None:
        store_count(self, "max_batch", "None keeps the random batch size")


def store_epochs(self: Participation) -> None:
    """Check the fields `epochs` and `steps_per_epoch`."""
    store_count(self, "epochs")
    store_count(self, "steps_per_epoch")


def enough_epochs(epochs: int, steps_per_epoch: int, steps: int) -> int:
    """Return `epochs`, or the number of epochs that `steps` steps need if that is more."""
    return max(epochs, -(-steps // steps_per_epoch))
