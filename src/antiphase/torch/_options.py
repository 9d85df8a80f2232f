"""Options of make_private, including those of Opacus that are refused because the plan determines them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._plan import Plan

MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp")
REFUSED = {
    "data_loader": "pass dataset=loader.dataset; the plan's own sampler draws the batches, never Opacus's",
    "noise_multiplier": "the noise comes from the plan",
    "max_grad_norm": "set the clipping norm in the plan: Problem(clip_norm=...)",
    "target_epsilon": "set the budget in the plan: Problem(budget=Budget(epsilon, delta))",
    "target_delta": "set the budget in the plan: Problem(budget=Budget(epsilon, delta))",
    "epochs": "set the number of steps in the plan: Problem(steps=...)",
    "poisson_sampling": "the plan's own sampler draws the batches: Problem(participation=...)",
    "noise_generator": "the noise comes from the run's secret",
    "secure_mode": "the noise comes from AES-256 already; neither accounts for floating-point rounding",
    "accountant": "the plan states the guarantee; report() and get_epsilon(delta) state that of the steps so far",
    "expected_batch_size": "set it in the plan: Problem(batch_size=...)",
    "rand_on_empty": "steps without examples are taken without a forward and backward pass",
    "wrap_model": "the model is always wrapped",
    "sample_rate": "the plan's own sampler draws the batches: Problem(participation=...)",
}


def refuse_options(owner: str, options: dict[str, Any]) -> None:
    """Raise for options of Opacus that the plan determines, and for unknown ones."""
    for name in options:
        if name in REFUSED:
            raise InvalidArgument(f"{owner} does not take {name}.", hint=REFUSED[name])
        raise InvalidArgument(f"{owner} has no parameter {name!r}.", hint="see its documentation")


def check_mode(clipping: str, mode: str, loss_reduction: str) -> None:
    """Raise for combinations that Opacus has no optimizer for, or that no guarantee is proved for."""
    owner = "make_private"
    if clipping not in ("flat", "per_layer"):
        hint = "adaptive clipping changes the mechanism from step to step, for which no guarantee is proved"
        raise invalid(owner, "clipping", "'flat' or 'per_layer'", clipping, hint)
    if mode not in MODES:
        raise invalid(owner, "grad_sample_mode", f"one of {', '.join(MODES)}", mode, "'hooks' works for most models")
    if "ghost" in mode and clipping != "flat":
        raise invalid(owner, "clipping", "'flat' with ghost clipping", clipping, "use grad_sample_mode='hooks'")
    if loss_reduction not in ("mean", "sum"):
        raise invalid(owner, "loss_reduction", "'mean' or 'sum'", loss_reduction, "use the reduction of your loss")


def clip_norms_for(plan: Plan, clipping: str, layers: int, given: Sequence[float] | None) -> list[float]:
    """The clipping norm of each parameter tensor, or a single norm for flat clipping.

    The norm of an example's gradient is the root of the sum of squares over the tensors. It must not exceed the plan's
    `clip_norm`.
    """
    total = plan.problem.clip_norm
    if clipping == "flat":
        if given is not None:
            raise invalid(
                "make_private",
                "clip_norms",
                "None with flat clipping",
                given,
                "flat clipping uses the plan's clip_norm",
            )
        return [total]
    norms = [total / math.sqrt(layers)] * layers if given is None else [float(c) for c in given]
    if len(norms) != layers or not all(c > 0 for c in norms) or not math.hypot(*norms) <= total * (1 + 1e-12):
        raise invalid(
            "make_private",
            "clip_norms",
            f"{layers} positive numbers whose root sum of squares is at most {total}",
            given,
            "None gives each tensor an equal share of the plan's clip_norm",
        )
    return norms


def batch_size(plan: Plan, examples: int) -> float:
    """The divisor for loss_reduction="mean": the plan's batch size, or the average size of its batches."""
    if plan.problem.batch_size is not None:
        return float(plan.problem.batch_size)
    participation = plan.mechanism.participation
    size, largest = participation.expected_batch(examples, plan.steps), participation.max_batch
    return size if largest is None else min(size, float(largest))


def epoch_length(plan: Plan, examples: int) -> int:
    """Steps per epoch: set by the participation, or such that each example is used about once."""
    given = getattr(plan.mechanism.participation, "steps_per_epoch", None)
    return int(given) if given is not None else max(1, round(examples / batch_size(plan, examples)))


def check_examples(plan: Plan, examples: int) -> None:
    """Raise if the plan was made for another number of examples."""
    planned = plan.problem.examples
    if planned is not None and planned != examples:
        raise InvalidArgument(
            f"The plan was made for {planned} examples. The data set has {examples}.",
            hint="make a plan for the number of examples in the data set",
        )
