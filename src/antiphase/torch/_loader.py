"""PyTorch data loader that yields the batches drawn by the plan's sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, final

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import refuse_pickle
from antiphase.torch._accelerate import accelerate_device, to_device
from antiphase.torch._optimizer import PrivateOptimizer
from antiphase.torch._step_tracker import StepTracker

T = TypeVar("T")
SET_BY_PLAN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset")


@final
class PlanBatchSampler(Sampler[list[int]]):
    """Yields the batches of the plan's own sampler, as lists of example indices. Each iterator covers one epoch.

    Empty batches are not yielded: the optimizer takes steps without examples itself. A new iterator in the middle of an
    epoch continues with the next step. After the plan's last step, a new iterator raises `Refused`.

    Args:
        tracker: provides the batch of each step on this rank.
        length: number of steps per epoch.
        optimizer: private optimizer, which takes the steps.
    """

    def __init__(self, tracker: StepTracker, length: int, optimizer: PrivateOptimizer) -> None:
        self._tracker, self._length, self._optimizer = tracker, length, optimizer
        self._epoch: int | None = None
        self._prefetched: range | None = None
        self.yields_empty = False

    __reduce_ex__ = refuse_pickle

    @property
    def epoch(self) -> int:
        """Index of the next epoch, from 0."""
        return self._tracker.step // self._length if self._epoch is None else self._epoch

    def reset(self) -> None:
        """Recompute the epoch from the current step, and drop the gradient sum of an unfinished batch."""
        self._epoch = None
        self._optimizer.begin_batch()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        if self._prefetched is None:
            return self.checked(self._examples)
        return self._examples(self._prefetched)

    def checked(self, read: Callable[[range], Iterable[T]]) -> Iterator[T]:
        """Yield the batches of an epoch from `read`, and check that each step is taken before the next batch.

        Args:
            read: function that maps the steps of the epoch to one batch for each step that has examples, in order. It
                may prefetch. For a step without examples, the batch is an empty list, if it is yielded at all.
        """
        steps = self._begin()
        batches = iter(read(steps))
        for step in steps:
            if not self._tracker.yields(step):
                continue
            found: Any = next(batches) if self._tracker.examples(step)[0] else []
            self._tracker.start_batch(step)
            yield found
            del found  # tracebacks may show local variables, and batches may be secret
            self._tracker.check_taken(step)

    @contextmanager
    def prefetch(self, steps: range) -> Iterator[None]:
        """Inside this context, new iterators yield the batches of `steps` without checks; `checked` adds the checks."""
        self._prefetched = steps
        try:
            yield
        finally:
            self._prefetched = None

    def yield_empty(self) -> None:
        """Yield an empty list for a step without examples. The optimizer's `step` then needs no gradients."""
        self._tracker.yield_empty_batches()
        self.yields_empty = True

    def _examples(self, steps: range) -> Iterator[list[int]]:
        return (found for step in steps if (found := self._tracker.examples(step)[0]))

    def _begin(self) -> range:
        """Start an epoch and return its steps."""
        epoch = self.epoch
        # Steps without examples may end the run one pass early. An interrupted pass does not end it.
        if min(epoch * self._length, self._tracker.step) >= self._tracker.steps:
            raise Refused(
                f"The run has ended: all {self._tracker.steps} steps of the plan have been taken.",
                hint="train for fewer epochs, make a plan for more steps, or extend the plan",
            )
        self._epoch = epoch + 1
        end = min((epoch + 1) * self._length, self._tracker.steps)
        self._tracker.start_pass(end)
        self._optimizer.begin_batch()
        self._optimizer.take_empty_steps()
        return range(self._tracker.step, end)


@final
class PlanLoader(DataLoader[Any]):
    """PyTorch's DataLoader for the plan's batches. Worker processes may prefetch; a batch is checked when yielded."""

    _device: torch.device | None = None

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate reads this in `prepare`, and then returns this loader instead of one that reads ahead."""
        self._device = accelerate_device()
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate sets this on everything that it has prepared."""

    def __iter__(self) -> Any:
        """Iterate over one epoch."""
        batches: Any = self.batch_sampler
        is_plain = self.num_workers == 0 and not batches.yields_empty
        found = super().__iter__() if is_plain else batches.checked(self._read)
        return found if self._device is None else (to_device(batch, self._device) for batch in found)

    def _read(self, steps: range) -> Any:
        batches: Any = self.batch_sampler
        with batches.prefetch(steps):
            return super().__iter__()


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` for options that determine the batches, or could mix up the batches of steps."""
    taken = [name for name in SET_BY_PLAN if name in options]
    if taken:
        raise InvalidArgument(
            f"The loader options {', '.join(taken)} cannot be set: batches come from the plan.",
            hint="remove them; set batch_size and participation in the Problem that you plan for",
        )
    if not options.get("in_order", True):
        raise InvalidArgument(
            "With in_order=False, a step could get the batch of another step.", hint="leave in_order=True"
        )
    if options.get("persistent_workers", False):
        raise InvalidArgument(
            "With persistent_workers=True, epochs share workers, so one epoch could get the batches of another.",
            hint="leave persistent_workers=False",
        )


def check_dataset(dataset: Any) -> int:
    """Return the number of examples in a map-style data set. Raise `InvalidArgument` for anything else."""
    if isinstance(dataset, DataLoader):
        raise InvalidArgument(
            "The 'dataset' parameter of make_private must be a data set. Got a DataLoader, which would not use the "
            "plan's batches.",
            hint="pass loader.dataset, and pass the other options of the loader as loader_options",
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InvalidArgument(
            f"The 'dataset' parameter of make_private must have a length. Got {type(dataset).__name__} instead.",
            hint="use a map-style data set: the plan draws batches by index",
        )
    return len(dataset)
