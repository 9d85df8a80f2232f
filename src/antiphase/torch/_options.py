"""Checks the options of `make_private`, and rejects options of Opacus whose values come from the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from antiphase._check import invalid, one_of
from antiphase._errors import InvalidArgument
from antiphase._plan import Plan

MODES = ("hooks", "functorch", "ew", "ghost", "ghost_fsdp")
EPSILON = "pass it to make_private_with_epsilon, or set the budget in the plan: Problem(budget=Budget(epsilon, delta))"
# What to write instead of the arguments of Opacus's engine.
OPACUS = {
    "data_loader": "pass dataset=loader.dataset; the plan's own sampler draws the batches. Pass other options of the "
    "loader, such as collate_fn, as loader_options",
    "noise_multiplier": "remove it: the noise comes from the plan",
    "max_grad_norm": "set the clipping norm in the plan: Problem(clip_norm=...)",
    "target_epsilon": EPSILON,
    "target_delta": EPSILON,
    "epsilon": EPSILON,
    "delta": EPSILON,
    "epochs": "set the number of steps in the plan: Problem(steps=...); or call make_private_with_epsilon",
    "batch_size": "set it in the plan: Problem(batch_size=...); or call make_private_with_epsilon",
    "poisson_sampling": "remove it; set how batches are drawn in the plan: Problem(participation=...)",
    "noise_generator": "remove it: the noise is derived from the run's secret",
    "secure_mode": "remove it: source='host' draws the noise with AES-256; the guarantee does not account for "
    "floating-point rounding, except with Problem(lattice=True)",
    "accountant": "remove it: the plan states the guarantee; report() and get_epsilon(delta) cover the steps so far",
    "expected_batch_size": "set the batch size in the plan: Problem(batch_size=...)",
    "rand_on_empty": "remove it: steps without examples need no forward and backward pass",
    "wrap_model": "remove it: the model is always wrapped",
    "sample_rate": "set how batches are drawn in the plan: Problem(participation=...)",
    "clipping_mode": "use clipping='flat' or 'per_layer'",
}
# What to pass for required arguments that Opacus's engine does not have.
NEEDED = {
    "directory": "PrivacyEngine('run'): a directory for the ledger and the secret; keep the model elsewhere",
    "dataset": "dataset=...: a map-style data set with one item per example",
    "plan": "plan=antiphase.plan(antiphase.Problem(steps, antiphase.Budget(epsilon, delta), examples=..., "
    "batch_size=..., clip_norm=...)); or call make_private_with_epsilon, which makes the plan",
    "epsilon": "epsilon=...: the privacy budget of the whole run",
    "delta": "delta=...: well below 1 / number of examples",
    "epochs": "epochs=...: the number of passes over the data set",
    "batch_size": "batch_size=...: the expected number of examples per step",
}
# Attributes and methods of Opacus's engine that have a different name here.
MOVED = {
    "accountant": "call get_epsilon(delta) of the engine instead of engine.accountant.get_epsilon(delta)",
    "save_checkpoint": "put state_dict() of the module, the optimizer and the engine into your checkpoint",
    "load_checkpoint": "call load_state_dict of the module, the optimizer and the engine",
    "get_compatible_module": "call opacus.validators.ModuleValidator.fix(module)",
    "is_compatible": "call opacus.validators.ModuleValidator.is_valid(module)",
    "validate": "call opacus.validators.ModuleValidator.validate(module)",
}


def refuse_options(owner: str, options: Mapping[str, Any], missing: Sequence[str] = ()) -> None:
    """Raise one `InvalidArgument` that lists all unusable options and all missing required arguments.

    Args:
        owner: name of the function that was called.
        options: options of Opacus that the plan replaces, or unknown options.
        missing: names of required arguments that were not passed.
    """
    if not options and not missing:
        return
    ours = [name for name in options if name in OPACUS]
    unknown = [name for name in options if name not in OPACUS]
    words = []
    if ours:
        words.append(f"{owner} does not take {_listed(ours)} of Opacus's PrivacyEngine.")
    if unknown:
        words.append(f"{owner} has no parameter {_listed(list(map(repr, unknown)))}.")
    if missing:
        words.append(f"{owner} needs {_listed(list(missing))}.")
    advice = {**{name: OPACUS[name] for name in ours}, **{name: NEEDED[name] for name in missing}}
    lines = [f"{name}: {text}" for name, text in advice.items()]
    if unknown:
        lines.append(f"see the documentation of {owner}")
    if len(lines) == 1:
        hint = lines[0].removeprefix(f"{next(iter(advice), '')}: ")
    else:
        hint = "\n".join(["to migrate from Opacus, see docs/opacus.md, and change", *(f"- {line}" for line in lines)])
    raise InvalidArgument(" ".join(words), hint=hint)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def check_mode(clipping: str, mode: str, loss_reduction: str) -> tuple[str, str, str]:
    """Return the three arguments. Raise `InvalidArgument` for unknown values, and for per-layer ghost clipping."""
    owner = "make_private"
    hint = "use 'flat' or 'per_layer'; the plan's guarantee does not cover adaptive clipping"
    clipping = one_of(owner, "clipping", clipping, ("flat", "per_layer"), hint)
    mode = one_of(owner, "grad_sample_mode", mode, MODES, "'hooks' works for most models")
    if "ghost" in mode and clipping != "flat":
        raise invalid(owner, "clipping", "'flat' with ghost clipping", clipping, "use grad_sample_mode='hooks'")
    hint = "use the reduction of your loss"
    return clipping, mode, one_of(owner, "loss_reduction", loss_reduction, ("mean", "sum"), hint)


def clip_norms_for(plan: Plan, clipping: str, layers: int, given: Sequence[float] | None) -> list[float]:
    """Return the clipping norm of each parameter tensor, or a single norm for flat clipping.

    The norm of an example's whole clipped gradient is at most the root of the sum of the squared clipping norms. So
    this root must not exceed the plan's `clip_norm`.

    Args:
        plan: plan with the total `clip_norm`.
        clipping: "flat" or "per_layer".
        layers: number of parameter tensors.
        given: norms chosen by the user; None for equal norms.
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
            "pass None to use the same norm for every tensor",
        )
    return norms


def batch_size(plan: Plan, examples: int) -> float:
    """Return the number by which the optimizer divides the gradients if loss_reduction="mean".

    This is the batch size in the plan's problem. If the problem has none, it is the expected batch size of the plan's
    participation, but at most its `max_batch`.
    """
    if plan.problem.batch_size is not None:
        return float(plan.problem.batch_size)
    participation = plan.mechanism.participation
    size, largest = participation.expected_batch(examples, plan.steps), participation.max_batch
    return size if largest is None else min(size, float(largest))


def epoch_length(plan: Plan, examples: int) -> int:
    """Return the number of steps per epoch.

    If the plan's participation does not define this number, it is the number of examples divided by the batch size.
    """
    given = getattr(plan.mechanism.participation, "steps_per_epoch", None)
    return int(given) if given is not None else max(1, round(examples / batch_size(plan, examples)))


def check_examples(plan: Plan, examples: int) -> None:
    """Raise `InvalidArgument` if the plan was made for a different number of examples."""
    planned = plan.problem.examples
    if planned is not None and planned != examples:
        raise InvalidArgument(
            f"The plan was made for {planned} examples. The data set has {examples}.",
            hint="make a plan for the number of examples in the data set",
        )
