"""The steps of a run as one rank meets them: which examples it processes, and whether it did."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from antiphase._errors import Refused
from antiphase._samplers import shard
from antiphase.torch._noise import NoiseAdder

KEPT = 64  # batches: what the worker processes of a data loader read ahead


@final
class Course:
    """Batches of this rank, step by step, and the check that each step's gradient is that of its own batch.

    Each rank processes every size-th example. With `even`, all ranks process equally many, since FSDP's ranks must
    run forward and backward together: one that has an example less repeats one, whose gradient is then weighted zero.
    """

    def __init__(self, noise: NoiseAdder, *, even: bool) -> None:
        self.noise = noise
        self._even = even
        self._rows = 0
        self._given: int | None = None
        self.examples = lru_cache(maxsize=KEPT)(self._examples)

    @property
    def step(self) -> int:
        """The step to take next."""
        return self.noise.step

    @property
    def steps(self) -> int:
        """n."""
        return self.noise.plan.steps

    @property
    def is_empty(self) -> bool:
        """Whether there is a next step and this rank has no example in it."""
        return self.step < self.steps and not self.examples(self.step)[0]

    @property
    def is_padded(self) -> bool:
        """Whether the last example of the step counts for nothing."""
        return self.examples(self.step)[1]

    def _examples(self, step: int) -> tuple[list[int], bool]:
        """The examples of a step and whether the last one is there to make the ranks even."""
        indices, mask = self.noise.batch(step)
        used, world = indices[mask], self.noise.world
        mine = shard(used, mask[mask], world.rank, world.size).indices.tolist()
        if self._even and len(mine) < -(-len(used) // world.size):
            return [*mine, int(used[0])], True
        return mine, False

    def give(self, step: int) -> None:
        """Note that a step's batch is handed out; it must be the step to take next."""
        if step != self.step:
            raise Refused(
                f"The batch of step {step} is to be handed out, but step {self.step} is the next.",
                hint="go through the loader in one place at a time, and anew after load_state_dict",
            )
        self._given = step

    def check_taken(self, step: int) -> None:
        """Refuse to go on to the next batch before the step of this one was taken."""
        if self.step <= step:
            raise Refused(
                f"The next batch was asked for, but step {step} was not taken.",
                hint="call optimizer.step() once for each batch of the loader; "
                "for smaller pieces of a batch use BatchMemoryManager, without worker processes",
            )

    def count(self, rows: int) -> None:
        """Note that so many clipped gradients were added up."""
        self._rows += rows

    def check_rows(self) -> None:
        """Refuse a sum that is not over the step's own batch, one clipped gradient for each example."""
        wanted = len(self.examples(self.step)[0])
        if self._given != self.step:
            raise Refused(
                f"The batch of step {self.step} was not taken from the private data loader.",
                hint="train on the data loader that make_private returned: the guarantee rests on its batches",
            )
        if self._rows != wanted:
            raise Refused(
                f"Step {self.step} has a batch of {wanted} examples, but {self._rows} clipped gradients were summed.",
                hint="every example of the batch gives one gradient; call optimizer.step() once for each batch",
            )

    def advance(self) -> None:
        """Commit the step and go on to the next one."""
        self.noise.commit()
        self._rows = 0

    def drop_rows(self) -> None:
        """Note that what was added up so far was dropped."""
        self._rows = 0

    def forget(self) -> None:
        """Begin at another step: what was handed out and summed no longer counts."""
        self._given, self._rows = None, 0
        self.examples.cache_clear()

    def take_empty(self) -> None:
        """Note that the step's batch, which is empty, was handed out."""
        self._given, self._rows = self.step, 0
