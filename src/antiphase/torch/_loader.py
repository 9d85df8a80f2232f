"""The plan's batches as a data loader of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, final

from torch.utils.data import DataLoader, IterableDataset, Sampler

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import refuse_pickle
from antiphase.torch._course import Course
from antiphase.torch._optimizer import PrivateSteps

T = TypeVar("T")
OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset")


@final
class PlanBatches(Sampler[list[int]]):
    """Batch after batch from the plan's own sampler, an epoch each time it is gone through.

    Empty batches are not given out: the optimizer takes their steps by itself. After the last step of the plan there
    is no further epoch. Gone through again in the middle of an epoch, it goes on with the next step.
    """

    def __init__(self, course: Course, length: int, optimizer: PrivateSteps) -> None:
        self._course, self._length, self._optimizer = course, length, optimizer
        self._epoch: int | None = None
        self._ahead: range | None = None

    __reduce_ex__ = refuse_pickle

    @property
    def epoch(self) -> int:
        """The epoch that comes next, counting from 0."""
        return self._course.step // self._length if self._epoch is None else self._epoch

    def rewind(self) -> None:
        """Forget the epoch, which follows from the step, and the pieces of a batch that was under way."""
        self._epoch = None
        self._optimizer.begin_batch()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        if self._ahead is None:
            return self.checked(self._examples)
        return self._examples(self._ahead)

    def checked(self, read: Callable[[range], Iterable[T]]) -> Iterator[T]:
        """What `read` gives for the steps of an epoch, each handed out when its step comes, and taken before the next.

        Args:
            read: something for each of the steps that has examples, in order; it may be ahead.
        """
        steps = self._begin()
        for step, found in zip(self._with_examples(steps), read(steps), strict=True):
            self._course.give(step)
            yield found
            self._course.check_taken(step)

    @contextmanager
    def read_ahead(self, steps: range) -> Iterator[None]:
        """Inside, whoever goes through is given the batches of these steps unchecked: `checked` hands them out."""
        self._ahead = steps
        try:
            yield
        finally:
            self._ahead = None

    def _with_examples(self, steps: range) -> Iterator[int]:
        return (step for step in steps if self._course.examples(step)[0])

    def _examples(self, steps: range) -> Iterator[list[int]]:
        return (self._course.examples(step)[0] for step in self._with_examples(steps))

    def _begin(self) -> range:
        """The steps of an epoch."""
        epoch = self.epoch
        if epoch * self._length >= self._course.steps:
            raise Refused(
                f"The run has ended: all {self._course.steps} steps of the plan are taken.",
                hint="train for fewer epochs; for more steps make a plan with more, or extend it",
            )
        self._epoch = epoch + 1
        self._optimizer.begin_batch()
        self._optimizer.take_empty_steps()
        return range(self._course.step, min((epoch + 1) * self._length, self._course.steps))


@final
class PlanLoader(DataLoader[Any]):
    """torch's data loader for the plan's batches.

    Worker processes read batches ahead, so what they are given is not checked; the batches are, where they come out.
    """

    def __iter__(self) -> Any:
        """An epoch."""
        if self.num_workers == 0:
            return super().__iter__()
        batches: Any = self.batch_sampler
        return batches.checked(self._read)

    def _read(self, steps: range) -> Any:
        batches: Any = self.batch_sampler
        with batches.read_ahead(steps):
            return super().__iter__()


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Raise for options that choose the batches, or that ask for batches before earlier steps are taken."""
    taken = [name for name in OURS if name in options]
    if taken:
        raise InvalidArgument(
            f"The loader's {', '.join(taken)} cannot be chosen: batches come from the plan.",
            hint="state batch size and participation in the Problem that the plan is made for",
        )
    if not options.get("in_order", True):
        raise InvalidArgument(
            "With in_order=False a batch may come in the place of another step's.", hint="leave in_order=True"
        )
    if options.get("persistent_workers", False):
        raise InvalidArgument(
            "Persistent workers are shared by all passes, and one would get the batch of another's step.",
            hint="leave persistent_workers=False",
        )


def check_dataset(dataset: Any) -> int:
    """The number of examples of a data set that can be sampled."""
    if isinstance(dataset, DataLoader):
        raise InvalidArgument(
            "The 'dataset' parameter of make_private must be a data set. Got a DataLoader, whose batches would not be "
            "those of the plan.",
            hint="pass loader.dataset, and what else the loader needs as loader_options",
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InvalidArgument(
            f"The 'dataset' parameter of make_private must have a length. Got {type(dataset).__name__} instead.",
            hint="batches are drawn by index: use a map-style data set",
        )
    return len(dataset)
