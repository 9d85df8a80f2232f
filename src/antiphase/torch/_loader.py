"""The plan's batches as a data loader of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from torch.utils.data import DataLoader, IterableDataset, Sampler

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._course import Course

OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "dataset")


@final
class PlanBatches(Sampler[list[int]]):
    """Batch after batch from the plan's own sampler, an epoch each time it is gone through.

    Empty batches are not given out: the optimizer takes their steps by itself. After the last step of the plan there
    is no further epoch. Gone through again in the middle of an epoch, it goes on with the next step.
    """

    def __init__(self, course: Course, length: int, take_empty_steps: Callable[[], None]) -> None:
        self._course, self._length, self._take_empty_steps = course, length, take_empty_steps
        self._epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The epoch that comes next, counting from 0."""
        return self._course.step // self._length if self._epoch is None else self._epoch

    def rewind(self) -> None:
        """Forget the epoch: it follows from the step."""
        self._epoch = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        if epoch * self._length >= self._course.steps:
            raise Refused(
                f"The run has ended: all {self._course.steps} steps of the plan are taken.",
                hint="train for fewer epochs; for more steps make a plan with more, or extend it",
            )
        self._epoch = epoch + 1
        self._take_empty_steps()
        for step in range(self._course.step, min((epoch + 1) * self._length, self._course.steps)):
            examples, _ = self._course.examples(step)
            if examples:
                self._course.give(step)
                yield examples
                self._course.check_taken(step)


def check_loader_options(options: Mapping[str, Any]) -> None:
    """Raise for options that choose the batches, or that ask for batches before earlier steps are taken."""
    taken = [name for name in OURS if name in options]
    if taken:
        raise InvalidArgument(
            f"The loader's {', '.join(taken)} cannot be chosen: batches come from the plan.",
            hint="state batch size and participation in the Problem that the plan is made for",
        )
    if options.get("num_workers", 0) > 0:
        raise InvalidArgument(
            "Worker processes read batches ahead: a batch that the loop skips would be taken for the next step's.",
            hint="leave num_workers=0, and prefetch inside the data set where loading is slow",
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
