"""A PyTorch data loader for the plan's batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, final

from torch.utils.data import DataLoader, IterableDataset, Sampler

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import refuse_pickle
from antiphase.torch._optimizer import PrivateOptimizer
from antiphase.torch._step_tracker import StepTracker

T = TypeVar("T")
SET_BY_PLAN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset")


@final
class PlanBatchSampler(Sampler[list[int]]):
    """Yields the batches of the plan's own sampler; each iterator is one epoch.

    Empty batches are not yielded: the optimizer takes their steps itself. After the last step of the plan, no further
    epoch can be started. A new iterator in the middle of an epoch continues with the next step.
    """

    def __init__(self, tracker: StepTracker, length: int, optimizer: PrivateOptimizer) -> None:
        self._tracker, self._length, self._optimizer = tracker, length, optimizer
        self._epoch: int | None = None
        self._prefetched: range | None = None

    __reduce_ex__ = refuse_pickle

    @property
    def epoch(self) -> int:
        """The next epoch, counting from 0."""
        return self._tracker.step // self._length if self._epoch is None else self._epoch

    def reset(self) -> None:
        """Derive the epoch from the step again, and drop the sum of an unfinished batch."""
        self._epoch = None
        self._optimizer.begin_batch()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        if self._prefetched is None:
            return self.checked(self._examples)
        return self._examples(self._prefetched)

    def checked(self, read: Callable[[range], Iterable[T]]) -> Iterator[T]:
        """Yield what `read` returns for the steps of an epoch, checking that each step is taken before the next.

        Args:
            read: returns one item for each of the steps that has examples, in order; it may prefetch.
        """
        steps = self._begin()
        for step, found in zip(self._with_examples(steps), read(steps), strict=True):
            self._tracker.start_batch(step)
            yield found
            self._tracker.check_taken(step)

    @contextmanager
    def prefetch(self, steps: range) -> Iterator[None]:
        """Inside this block, iterators yield the batches of these steps unchecked; `checked` checks them later."""
        self._prefetched = steps
        try:
            yield
        finally:
            self._prefetched = None

    def _with_examples(self, steps: range) -> Iterator[int]:
        return (step for step in steps if self._tracker.examples(step)[0])

    def _examples(self, steps: range) -> Iterator[list[int]]:
        return (self._tracker.examples(step)[0] for step in self._with_examples(steps))

    def _begin(self) -> range:
        """Start an epoch and return its steps."""
        epoch = self.epoch
        if epoch * self._length >= self._tracker.steps:
            raise Refused(
                f"The run has ended: all {self._tracker.steps} steps of the plan are taken.",
                hint="train for fewer epochs, or make or extend a plan for more steps",
            )
        self._epoch = epoch + 1
        self._optimizer.begin_batch()
        self._optimizer.take_empty_steps()
        return range(self._tracker.step, min((epoch + 1) * self._length, self._tracker.steps))


@final
class PlanLoader(DataLoader[Any]):
    """PyTorch's data loader for the plan's batches.

    Worker processes prefetch, so batches are checked not when they are assigned to workers but when they are yielded.
    """

    def __iter__(self) -> Any:
        """Iterate over one epoch."""
        if self.num_workers == 0:
            return super().__iter__()
        batches: Any = self.batch_sampler
        return batches.checked(self._read)

    def _read(self, steps: range) -> Any:
        batches: Any = self.batch_sampler
        with batches.prefetch(steps):
            return super().__iter__()


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Raise for options that set the batches, or that would mix up the batches of several steps."""
    taken = [name for name in SET_BY_PLAN if name in options]
    if taken:
        raise InvalidArgument(
            f"The loader option(s) {', '.join(taken)} cannot be set: batches come from the plan.",
            hint="set batch size and participation in the Problem that the plan is made for",
        )
    if not options.get("in_order", True):
        raise InvalidArgument(
            "With in_order=False, a step could get the batch of another step.", hint="leave in_order=True"
        )
    if options.get("persistent_workers", False):
        raise InvalidArgument(
            "With persistent_workers=True, all epochs share workers, and one could get the batches of another.",
            hint="leave persistent_workers=False",
        )


def check_dataset(dataset: Any) -> int:
    """The number of examples of a data set, which must be map-style."""
    if isinstance(dataset, DataLoader):
        raise InvalidArgument(
            "The 'dataset' parameter of make_private must be a data set. Got a DataLoader, whose batches are not those "
            "of the plan.",
            hint="pass loader.dataset, and other options of the loader as loader_options",
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InvalidArgument(
            f"The 'dataset' parameter of make_private must have a length. Got {type(dataset).__name__} instead.",
            hint="use a map-style data set: batches are drawn by index",
        )
    return len(dataset)
