"""What can be asked of Opacus, and what is refused because it would change the mechanism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from antiphase._check import invalid, one_of
from antiphase._errors import InvalidArgument
from antiphase._plan import Plan

MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp")
REFUSED = {
    "data_loader": "pass dataset=loader.dataset; the plan's own sampler draws the batches, and Opacus's is never used",
    "noise_multiplier": "the noise comes from the plan",
    "max_grad_norm": "the clipping norm is that of the plan: Problem(clip_norm=...)",
    "target_epsilon": "the budget is that of the plan: Problem(budget=Budget(epsilon, delta))",
    "target_delta": "the budget is that of the plan: Problem(budget=Budget(epsilon, delta))",
    "epochs": "the number of steps is that of the plan: Problem(steps=...)",
    "poisson_sampling": "the plan's own sampler draws the batches: Problem(participation=...)",
    "noise_generator": "the noise comes from the run's secret",
    "secure_mode": "the noise comes from AES-256 already; rounding to floating point is accounted for by neither",
    "accountant": "the guarantee is that of the plan, and report() states that of what ran",
    "expected_batch_size": "it is the plan's: Problem(batch_size=...)",
    "rand_on_empty": "steps without examples are taken without forward and backward",
    "wrap_model": "the model is always wrapped",
    "sample_rate": "the plan's own sampler draws the batches: Problem(participation=...)",
}


def refuse_options(owner: str, options: dict[str, Any]) -> None:
    """Raise for anything that Opacus takes and that the plan decides."""
    for name in options:
        if name in REFUSED:
            raise InvalidArgument(f"{owner} does not take {name}.", hint=REFUSED[name])
        raise InvalidArgument(f"{owner} has no parameter {name!r}.", hint="see its documentation")


def check_mode(clipping: str, mode: str, loss_reduction: str) -> tuple[str, str, str]:
    """Return the three names; raise where Opacus has no optimizer, or no guarantee is proved."""
    owner = "make_private"
    hint = "adaptive clipping changes the mechanism from step to step, and no guarantee is proved for that"
    clipping = one_of(owner, "clipping", clipping, ("flat", "per_layer"), hint)
    mode = one_of(owner, "grad_sample_mode", mode, tuple(MODES), "'hooks' works for most models")
    if "ghost" in mode and clipping != "flat":
        raise invalid(owner, "clipping", "'flat' with ghost clipping", clipping, "use grad_sample_mode='hooks'")
    return clipping, mode, one_of(owner, "loss_reduction", loss_reduction, ("mean", "sum"), "that of your loss")


def clip_norms_for(plan: Plan, clipping: str, layers: int, given: Sequence[float] | None) -> list[float]:
    """The clipping norm of each parameter tensor, together at most the plan's; one number where all are clipped as one.

    The gradient of an example has the norm sqrt(sum of squares) over the tensors, so that is what must not exceed
    the plan's `clip_norm`.
    """
    total = plan.problem.clip_norm
    if clipping == "flat":
        if given is not None:
            raise invalid("make_private", "clip_norms", "None with flat clipping", given, "it is the plan's clip_norm")
        return [total]
    norms = [total / math.sqrt(layers)] * layers if given is None else [float(c) for c in given]
    if len(norms) != layers or not all(c > 0 for c in norms) or not math.hypot(*norms) <= total * (1 + 1e-12):
        raise invalid(
            "make_private",
            "clip_norms",
            f"{layers} positive numbers whose root sum of squares is at most {total}",
            given,
            "None shares the plan's clip_norm out equally",
        )
    return norms


def batch_size(plan: Plan, examples: int) -> float:
    """What a "mean" is divided by: the plan's batch size, else what its sampler gives on average."""
    if plan.problem.batch_size is not None:
        return float(plan.problem.batch_size)
    participation = plan.mechanism.participation
    size, largest = participation.expected_batch(examples, plan.steps), participation.max_batch
    return size if largest is None else min(size, float(largest))


def epoch_length(plan: Plan, examples: int) -> int:
    """Steps an epoch: the participation's own, else so many that each example is met about once."""
    given = getattr(plan.mechanism.participation, "steps_per_epoch", None)
    return int(given) if given is not None else max(1, round(examples / batch_size(plan, examples)))


def check_examples(plan: Plan, examples: int) -> None:
    """Raise where the plan was made for another number of examples."""
    planned = plan.problem.examples
    if planned is not None and planned != examples:
        raise InvalidArgument(
            f"The plan was made for {planned} examples. The data set has {examples}.",
            hint="make a plan for the number of examples there are",
        )
