"""PyTorch data loader that yields the batches drawn by the plan's sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, final

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Sampler, Subset

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import refuse_pickle
from antiphase.torch._accelerate import accelerate_device, to_device
from antiphase.torch._optimizer import PrivateOptimizer
from antiphase.torch._random_state import SeededCollate, StepGenerators
from antiphase.torch._step_tracker import StepTracker

T = TypeVar("T")
SET_BY_PLAN = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset")


@final
class PlanBatchSampler(Sampler[list[int]]):
    """Yields the batches of the plan's own sampler, as lists of example indices. Each iterator covers one epoch.

    By default, empty batches are not yielded: the optimizer takes steps without examples itself. A new iterator in the
    middle of an epoch continues with the next step. After the plan's last step, a new iterator raises `Refused`.

    Args:
        tracker: provides this rank's part of the batch of each step.
        length: number of steps per epoch.
        optimizer: private optimizer, which takes the steps.
        one_at_a_time: whether to yield the examples of a batch one by one, as lattice noise requires.
    """

    def __init__(
        self, tracker: StepTracker, length: int, optimizer: PrivateOptimizer, *, one_at_a_time: bool = False
    ) -> None:
        self._tracker, self._length, self._optimizer = tracker, length, optimizer
        self._one_at_a_time = one_at_a_time
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
        """Yield the batches of an epoch from `read`. Check that each step is taken before the next batch is requested.

        For a step without examples, this yields an empty list if `yield_empty` was called, and otherwise nothing.

        Args:
            read: function that takes the steps of the epoch and yields their batches in order, without empty batches.
                It may load batches ahead of time.
        """
        steps = self._begin()
        batches, started = iter(read(steps)), 0
        try:
            for step in steps:
                if not self._tracker.yields(step):
                    continue
                for part in self._parts(step):
                    indices = self._tracker.examples(step)[0]
                    started = self._tracker.generators.start(step, None if part is None else indices[part])
                    found: Any = next(batches) if indices else []
                    self._tracker.start_batch(step, part)
                    yield found
                    del found  # tracebacks may show local variables, and batches may be secret
                    self._tracker.check_taken(step, part)
        finally:  # also if the loop ends in the middle of a step
            self._tracker.generators.end(started)

    def worker_start(self, steps: range, then: Callable[[int], None] | None) -> Callable[[int], None]:
        """Return a function for workers to call before they load the batches of `steps`. It also calls `then`."""
        return self._tracker.generators.worker_start(steps.start, then)

    @contextmanager
    def prefetch(self, steps: range) -> Iterator[None]:
        """Inside this context, new iterators yield the batches of `steps` without checks; `checked` adds the checks."""
        self._prefetched = steps
        try:
            yield
        finally:
            self._prefetched = None

    def yield_empty(self) -> None:
        """From now on, yield one item for every step: its whole batch, or an empty list for a step without examples.

        If the batch is empty, the optimizer's `step` needs no gradients.
        """
        self._tracker.yield_empty_batches()
        self.yields_empty, self._one_at_a_time = True, False

    def _examples(self, steps: range) -> Iterator[list[int]]:
        batches = (found for step in steps if (found := self._tracker.examples(step)[0]))
        return ([i] for batch in batches for i in batch) if self._one_at_a_time else batches

    def _parts(self, step: int) -> Iterable[int | None]:
        """Return the positions of the examples in a batch, or (None,) if the batch is yielded as a whole."""
        return range(len(self._tracker.examples(step)[0])) if self._one_at_a_time else (None,)

    def _begin(self) -> range:
        """Start an epoch and return its steps."""
        epoch = self.epoch
        # Raise only if all epochs have started and all steps are taken. If the last steps have no examples, they may
        # be taken before the last epoch starts. After an interrupted epoch, steps may remain when no epoch is left.
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
    """PyTorch's DataLoader for the plan's batches. Workers may load batches early; each is checked when yielded."""

    _device: torch.device | None = None

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate reads this in `prepare`, and then returns this loader instead of a loader that reads ahead."""
        self._device = accelerate_device()
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate sets this on everything that it has prepared."""

    def seed_collation(self, generators: StepGenerators) -> None:
        """If this process collates the batches, seed the random generators before each batch is collated."""
        if self.num_workers == 0:
            self.collate_fn = SeededCollate(self.collate_fn, generators)

    @property
    def own_collate(self) -> Any:
        """The user's collate function, without seeding."""
        found = self.collate_fn
        return found.collate if isinstance(found, SeededCollate) else found

    def __iter__(self) -> Any:
        """Iterate over one epoch."""
        batches: Any = self.batch_sampler
        is_plain = self.num_workers == 0 and not batches.yields_empty
        found = super().__iter__() if is_plain else batches.checked(self._read)
        return found if self._device is None else (to_device(batch, self._device) for batch in found)

    def _read(self, steps: range) -> Any:
        check_order(self.in_order)  # it may have changed since the loader was created
        batches: Any = self.batch_sampler
        given = self.worker_init_fn
        self.worker_init_fn = batches.worker_start(steps, given)
        try:
            with batches.prefetch(steps):
                return super().__iter__()
        finally:
            self.worker_init_fn = given


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Raise `InvalidArgument` for options that set the batches, or could give a step the batch of a different step."""
    taken = [name for name in SET_BY_PLAN if name in options]
    if taken:
        raise InvalidArgument(
            f"The loader options {', '.join(taken)} cannot be set: batches come from the plan.",
            hint="remove them; set batch_size and participation in the Problem that you plan for",
        )
    check_order(options.get("in_order", True))
    if options.get("persistent_workers", False):
        raise InvalidArgument(
            "With persistent_workers=True, epochs share workers, so one epoch could get the batches of another.",
            hint="leave persistent_workers=False",
        )


def check_order(in_order: Any) -> None:
    """Raise `InvalidArgument` if worker processes may return batches in a different order than the steps."""
    if not in_order:
        raise InvalidArgument(
            "With in_order=False, a step could get the batch of another step.", hint="leave in_order=True"
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
    if kind := _repeated(dataset):
        raise InvalidArgument(
            f"The data set lists the same example of a {kind} several times. The plan protects each item as if it were "
            "a different example.",
            hint="list each example once; to see examples more often, train for more epochs",
        )
    return len(dataset)


def _repeated(dataset: Any) -> str | None:
    """Return the type name of a data set with an item that Subset or ConcatDataset lists several times, or None."""
    if not isinstance(dataset, (Subset, ConcatDataset)):
        return None
    places: dict[int, list[Any]] = {}
    kinds: dict[int, str] = {}
    for source, found in _sources(dataset, np.arange(len(dataset))):
        places.setdefault(id(source), []).append(found)
        kinds[id(source)] = type(source).__name__
    for key, parts in places.items():
        listed = np.concatenate(parts)
        if len(np.unique(listed)) < len(listed):
            return kinds[key]
    return None


def _sources(dataset: Any, places: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each data set inside Subset and ConcatDataset, with its own indices of the items at `places`."""
    if isinstance(dataset, Subset):
        indices = np.array([int(i) for i in dataset.indices], np.int64)
        yield from _sources(dataset.dataset, indices[places] % len(dataset.dataset))  # type: ignore[arg-type]
    elif isinstance(dataset, ConcatDataset):
        ends = np.array(dataset.cumulative_sizes)
        which = np.searchsorted(ends, places, side="right")
        for i, part in enumerate(dataset.datasets):
            yield from _sources(part, places[which == i] - (ends[i] - len(part)))  # type: ignore[arg-type]
    else:
        yield dataset, places
