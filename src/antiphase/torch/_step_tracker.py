"""Tracks the current training step on one rank: which examples it has, and whether all of them were processed."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from torch.distributed.tensor import DTensor

from antiphase._errors import Refused
from antiphase._samplers import shard
from antiphase._traceback import without_locals
from antiphase.torch._noise_adder import NoiseAdder

CACHED_BATCHES = 64  # enough for the batches that the workers of a data loader prefetch


@final
class StepTracker:
    """Provides the batch of each step on this rank, and checks that each gradient sum is over the step's own batch.

    The examples of a batch are split over the ranks: rank r of R processes examples r, r + R, r + 2R and so on.

    Args:
        noise: adds the noise and commits the steps.
        even: whether all ranks must process equally many examples, as FSDP requires. If so, a rank with one example
            fewer repeats an example, whose gradient gets weight 0.
    """

    def __init__(self, noise: NoiseAdder, *, even: bool) -> None:
        self.noise = noise
        noise._reserve_for_engine()
        self._even = even
        self._gradients = 0
        self._yielded: int | None = None
        self._versions: list[int] | None = None  # of the parameters, when the loader yielded the batch
        self._yields_empty = False
        # With several ranks, a pass through the loader ends at the same step on all of them. Otherwise a rank without
        # examples could start the next pass while another rank publishes results, for example.
        self._pass_end = self.steps if noise.transport.size == 1 else 0
        self.examples = lru_cache(maxsize=CACHED_BATCHES)(self._examples)

    @property
    def step(self) -> int:
        """Index of the next step to take, from 0."""
        return self.noise.step

    @property
    def steps(self) -> int:
        """Number of steps in the plan."""
        return self.noise.plan.steps

    @property
    def is_empty(self) -> bool:
        """Whether the optimizer takes the next step by itself, because this rank has no examples in it.

        False after the last step. With several ranks, also False after the last step of a pass through the loader.
        """
        return not self._yields_empty and self.step < self._pass_end and not self.examples(self.step)[0]

    @property
    def is_empty_yielded(self) -> bool:
        """Whether the loader has yielded the batch of the next step, which has no examples."""
        return self._yields_empty and self._yielded == self.step and not self.examples(self.step)[0]

    def yields(self, step: int) -> bool:
        """Return whether the loader yields the batch of a step."""
        return self._yields_empty or bool(self.examples(step)[0])

    def yield_empty_batches(self) -> None:
        """Make the loader yield batches without examples too, so that every step is an iteration of the loop."""
        self._yields_empty = True

    def is_padded(self) -> bool:
        """Return whether the last example of the next step is a repeated one, with weight 0."""
        return self.examples(self.step)[1]

    @without_locals
    def _examples(self, step: int) -> tuple[list[int], bool]:
        """Return this rank's examples in a step, and whether the last one is repeated to make the ranks even."""
        indices, mask = self.noise._draw_for_engine(step)
        used, ranks = indices[mask], self.noise.transport
        mine = shard(used, mask[mask], ranks.rank, ranks.size).indices.tolist()
        if self._even and len(mine) < -(-len(used) // ranks.size):
            return [*mine, int(used[0])], True
        return mine, False

    def start_pass(self, end: int) -> None:
        """Record that a pass through the loader starts, which ends before step `end` on all ranks."""
        if self.noise.transport.size > 1:
            self._pass_end = end

    def start_batch(self, step: int) -> None:
        """Record that the loader yields the batch of `step`. Raise `Refused` if it is not the next step."""
        if step != self.step:
            raise Refused(
                f"The loader is about to yield the batch of step {step}, but the next step is {self.step}.",
                hint="use one iterator of the loader at a time, and a new one after load_state_dict",
            )
        self._yielded, self._versions = step, self._parameter_versions()
        self.noise._start_for_engine()

    def start_empty_batch(self) -> None:
        """Record that the next step's batch, which is empty, needs no gradients."""
        self._yielded, self._gradients, self._versions = self.step, 0, None

    def check_taken(self, step: int) -> None:
        """Raise `Refused` if `step` was not taken; the loader calls this before it yields the next batch."""
        if self.step <= step:
            raise Refused(
                f"The next batch was requested, but step {step} was not taken.",
                hint="call optimizer.step() once for each batch of the loader; "
                "to split a batch use BatchMemoryManager, without worker processes",
            )

    def count(self, gradients: int) -> None:
        """Add the number of clipped gradients of a physical batch to the step's count."""
        self._gradients += gradients

    def reset_count(self) -> None:
        """Set the count to 0, because the sum so far was dropped."""
        self._gradients = 0

    def check_sum(self) -> None:
        """Raise `Refused` unless the sum has one clipped gradient for each example of the step's own batch."""
        wanted = len(self.examples(self.step)[0])
        if self._yielded != self.step:
            raise Refused(
                f"The batch of step {self.step} is not from the private data loader.",
                hint="train on the data loader that make_private returned: the guarantee relies on its batches",
            )
        if self._versions is not None and self._versions != self._parameter_versions():
            raise Refused(
                f"The parameters were changed while the gradients of step {self.step} were computed, for example by "
                "another optimizer. Gradients without noise may be in them.",
                hint="change parameters only after step() and before the next batch; remove other optimizers of the "
                "same parameters, and methods such as SAM that move the weights by gradients without noise",
            )
        if self._gradients != wanted:
            words = "More" if self._gradients > wanted else "Fewer"
            raise Refused(  # without the numbers: the size of a batch may be secret
                f"{words} clipped gradients were summed than there are examples in the batch of step {self.step}.",
                hint="compute one gradient for every example of the batch, and call optimizer.step() once per batch",
            )

    def _parameter_versions(self) -> list[int] | None:
        """Return how often each parameter was changed in place; None with FSDP, which changes them in every pass."""
        parameters = self.noise.parameters
        return None if any(isinstance(p, DTensor) for p in parameters) else [p._version for p in parameters]

    def commit(self) -> None:
        """Record the step in the ledger and advance to the next one."""
        self.noise._commit_for_engine()
        self._gradients = 0

    def reset(self) -> None:
        """Forget the batch that was yielded and the count, in order to continue at another step."""
        self._yielded, self._gradients, self._versions = None, 0, None
        self.examples.cache_clear()
