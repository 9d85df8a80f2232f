"""Tracks the step of training on one rank: which examples it processes, and whether it processed all of them."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from antiphase._errors import Refused
from antiphase._samplers import shard
from antiphase.torch._noise_adder import NoiseAdder

CACHED_BATCHES = 64  # as many as the workers of a data loader may prefetch


@final
class StepTracker:
    """The batches of this rank, step by step, and checks that each step's gradient is that of its own batch.

    Each rank processes every size-th example. The ranks of FSDP must run forward and backward together, so with `even`
    all ranks process equally many examples: a rank that would have one less repeats one, whose gradient gets weight 0.
    """

    def __init__(self, noise: NoiseAdder, *, even: bool) -> None:
        self.noise = noise
        noise._reserve_for_engine()
        self._even = even
        self._gradients = 0
        self._yielded: int | None = None
        self.examples = lru_cache(maxsize=CACHED_BATCHES)(self._examples)

    @property
    def step(self) -> int:
        """The next step to take."""
        return self.noise.step

    @property
    def steps(self) -> int:
        """Number of steps of the plan."""
        return self.noise.plan.steps

    @property
    def is_empty(self) -> bool:
        """Whether there is a next step and this rank has no example in it."""
        return self.step < self.steps and not self.examples(self.step)[0]

    def is_padded(self) -> bool:
        """Whether the last example of the step is a repeated one with weight 0."""
        return self.examples(self.step)[1]

    def _examples(self, step: int) -> tuple[list[int], bool]:
        """The examples of a step, and whether the last one is repeated to make the ranks even."""
        indices, mask = self.noise.batch(step)
        used, ranks = indices[mask], self.noise.transport
        mine = shard(used, mask[mask], ranks.rank, ranks.size).indices.tolist()
        if self._even and len(mine) < -(-len(used) // ranks.size):
            return [*mine, int(used[0])], True
        return mine, False

    def start_batch(self, step: int) -> None:
        """Note that the loader yields the batch of a step, which must be the next step."""
        if step != self.step:
            raise Refused(
                f"The loader is about to yield the batch of step {step}, but the next step is {self.step}.",
                hint="use one iterator of the loader at a time, and a new one after load_state_dict",
            )
        self._yielded = step

    def start_empty_batch(self) -> None:
        """Note that the step's batch, which is empty, needs no gradients."""
        self._yielded, self._gradients = self.step, 0

    def check_taken(self, step: int) -> None:
        """Refuse to yield the next batch before the step of this one was taken."""
        if self.step <= step:
            raise Refused(
                f"The next batch was requested, but step {step} was not taken.",
                hint="call optimizer.step() once for each batch of the loader; "
                "to split a batch use BatchMemoryManager, without worker processes",
            )

    def count(self, gradients: int) -> None:
        """Count clipped gradients that are added to the step's sum."""
        self._gradients += gradients

    def reset_count(self) -> None:
        """Note that the sum so far was dropped."""
        self._gradients = 0

    def check_sum(self) -> None:
        """Refuse a sum that is not over the step's own batch, with one clipped gradient per example."""
        wanted = len(self.examples(self.step)[0])
        if self._yielded != self.step:
            raise Refused(
                f"The batch of step {self.step} was not taken from the private data loader.",
                hint="train on the data loader that make_private returned: the guarantee relies on its batches",
            )
        if self._gradients != wanted:
            words = "More" if self._gradients > wanted else "Fewer"
            raise Refused(  # without the numbers: the size of a batch may be secret
                f"{words} clipped gradients were summed in step {self.step} than its batch has examples.",
                hint="compute one gradient for every example of the batch, and call optimizer.step() once per batch",
            )

    def commit(self) -> None:
        """Commit the step and go to the next one."""
        self.noise._commit_for_engine()
        self._gradients = 0

    def reset(self) -> None:
        """Continue at another step: forget which batch was yielded, and the sum so far."""
        self._yielded, self._gradients = None, 0
        self.examples.cache_clear()
