"""Audits of `antiphase.torch`: your own model, trained on data with canaries (artificial examples) by the real engine.

release = antiphase.audit.torch.drive(plan, directory, model, data, nn.CrossEntropyLoss(), canaries=500)
found = antiphase.audit.evaluate(plan, release)
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._measured import StatisticalTest
from antiphase._plan import Plan
from antiphase._secret import Secret
from antiphase.audit._black_box import FinalModels
from antiphase.audit._release import Flags, Release
from antiphase.audit._simulation import Indices, canary_places, coin_generator, fair_coins, released_matrix
from antiphase.torch import PrivacyEngine

WEIGHT = 1000.0  # norm of a canary's gradient before clipping, as a multiple of the clipping norm
TOLERANCE = 1e-3


class CanaryModel(nn.Module):
    """A model plus a canary layer, which is a linear layer whose per-example gradient is the example's own vector.

    Args:
        model: the audited model.
        width: number of directions of the canary layer, which are its outputs.
    """

    def __init__(self, model: nn.Module, width: int) -> None:
        super().__init__()
        self.model = model
        self.canary = nn.Linear(1, width, bias=False)  # one row per direction, since FSDP shards along rows
        nn.init.zeros_(self.canary.weight)

    def forward(self, x: Any, vector: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the model, with the output of the canary layer as the last column."""
        canary = self.canary(vector.new_ones(len(vector), 1)) * vector
        return torch.cat([self.model(x).flatten(1), canary.sum(1, keepdim=True)], dim=1)


class CanaryLoss(nn.Module):
    """For each example, the loss of the audited model times a weight, plus the output of the canary layer.

    Args:
        loss: loss of the audited model, with an attribute `reduction`.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, loss: Any, reduction: str = "mean") -> None:
        super().__init__()
        self.loss = copy.deepcopy(loss)
        self.loss.reduction = "none"
        self.reduction = reduction

    def forward(self, outputs: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the losses of a batch; `targets` are the targets of the model and the weights of the examples."""
        wanted, weights = targets
        losses = self.loss(outputs[:, :-1], wanted).reshape(len(outputs), -1).mean(1)
        each = weights * losses + outputs[:, -1]
        return {"none": each, "sum": each.sum(), "mean": each.mean()}[self.reduction]


class CanaryData(Dataset[Any]):
    """A data set in which some examples are canaries.

    Args:
        data: data set of the audited model, with items (input, target). Canaries use its inputs, with weight 0.
        sizes: maps each canary example to the index of its direction and the size of its gradient.
        width: number of directions of the canary layer.
        weights: weights of the examples in the loss of the audited model.
    """

    def __init__(self, data: Any, sizes: dict[int, tuple[int, float]], width: int, weights: torch.Tensor) -> None:
        self.data, self.sizes, self.width, self.weights = data, sizes, width, weights

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x, y = self.data[index % len(self.data)]
        vector = torch.zeros(self.width)
        if index in self.sizes:
            direction, size = self.sizes[index]
            vector[direction] = size
        return x, vector, y, self.weights[index], index


def drive(
    plan: Plan,
    directory: str | Path,
    model: nn.Module,
    data: Any,
    loss: Any,
    *,
    canaries: int,
    quiet: int = 64,
    examples: int | None = None,
    secret: Secret | None = None,
    mode: str = "hooks",
    loss_reduction: str = "mean",
    physical: int | None = None,
    learning_rate: float = 0.1,
    wrap: Callable[[nn.Module], nn.Module] | None = None,
    options: dict[str, Any] | None = None,
) -> Release:
    """Train a model with the real engine and canary examples in its data, and return what was released.

    The released sums are recorded at the inner optimizer, which receives the noisy gradients from the engine. In a
    process group, call this function on every rank. Each rank returns the release of all canaries.

    Args:
        plan: plan to train with.
        directory: directory of the run; must be empty.
        model: model to train; a copy of it is trained.
        data: data set with items (input, target).
        loss: loss of the model with an attribute `reduction`, such as nn.CrossEntropyLoss().
        canaries: number of canary examples.
        quiet: number of extra directions in the canary layer that no canary uses.
        examples: number of examples, including canaries; by default, the number in the plan's problem.
        secret: secret of the run; None for a fresh one. All ranks need the same secret.
        mode: `grad_sample_mode` of the engine.
        loss_reduction: "mean" or "sum".
        physical: largest number of examples in one forward and backward pass; None for no limit.
        learning_rate: learning rate of plain SGD.
        wrap: wraps the model for several processes, such as DifferentiallyPrivateDistributedDataParallel.
        options: other options of `make_private`.
    """
    start = time.perf_counter()
    secret = Secret.generate() if secret is None else secret
    present, places, dataset = _with_canaries(plan, data, canaries, quiet, examples, secret)
    module = CanaryModel(copy.deepcopy(model), canaries + quiet)
    rows, part = _train(
        plan,
        directory,
        wrap(module) if wrap else module,
        dataset,
        loss,
        lambda wrapped: [_canary_weight(wrapped)],
        secret,
        mode,
        loss_reduction,
        physical,
        learning_rate,
        options or {},
    )
    released = released_matrix(rows, plan.problem.clip_norm)
    return Release(
        released[:, :canaries],
        present,
        part[:, places],
        released[:, canaries:],
        source=f"antiphase.torch, {mode}",
        seconds=time.perf_counter() - start,
        single_run=True,
    )


def drive_final_model(
    plan: Plan,
    directory: str | Path,
    model: nn.Module,
    data: Any,
    loss: Any,
    *,
    canaries: int,
    examples: int | None = None,
    secret: Secret | None = None,
    mode: str = "hooks",
    loss_reduction: str = "mean",
    physical: int | None = None,
    learning_rate: float = 0.1,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    options: dict[str, Any] | None = None,
) -> FinalModels:
    """Train a model with the real engine and canaries, and return scores from the final model (a black-box audit).

    Nothing is recorded during training. The score of a canary is how far the trained weights moved against the canary's
    gradient. To audit many runs, call this function with different secrets and combine the results with
    `joined_final_models`.

    Args:
        plan: plan to train with.
        directory: directory of the run; must be empty.
        model: model to train; a copy of it is trained.
        data: data set with items (input, target).
        loss: loss of the model with an attribute `reduction`, such as nn.CrossEntropyLoss().
        canaries: number of canary examples.
        examples: number of examples, including canaries; by default, the number in the plan's problem.
        secret: secret of the run; None for a fresh one.
        mode: `grad_sample_mode` of the engine.
        loss_reduction: "mean" or "sum".
        physical: largest number of examples in one forward and backward pass; None for no limit.
        learning_rate: learning rate of the optimizer.
        optimizer: function (parameters, lr=...) -> optimizer.
        options: other options of `make_private`.
    """
    start = time.perf_counter()
    secret = Secret.generate() if secret is None else secret
    present, _, dataset = _with_canaries(plan, data, canaries, 0, examples, secret)
    module = CanaryModel(copy.deepcopy(model), canaries)
    _train(
        plan,
        directory,
        module,
        dataset,
        loss,
        lambda wrapped: [_canary_weight(wrapped)],
        secret,
        mode,
        loss_reduction,
        physical,
        learning_rate,
        options or {},
        optimizer,
    )
    moved = -module.canary.weight.detach().double().cpu().numpy().reshape(-1)  # the weights started at 0
    return FinalModels(moved, present, f"antiphase.torch, {mode}, final model", time.perf_counter() - start)


def _with_canaries(
    plan: Plan, data: Any, canaries: int, quiet: int, examples: int | None, secret: Secret
) -> tuple[Flags, Indices, CanaryData]:
    """Return the coins (True for present canaries), the indices of the canaries, and the data with canaries."""
    total = examples or plan.problem.examples or canaries
    present = fair_coins(canaries, coin_generator(secret, "torch"))
    signs = 2.0 * present - 1.0 if plan.mechanism.adjacency == "replace" else present.astype(np.float64)
    places = canary_places(canaries, total, secret)
    clip = plan.problem.clip_norm
    sizes = {int(place): (i, WEIGHT * clip * float(signs[i])) for i, place in enumerate(places)}
    weights = torch.ones(total)
    weights[torch.as_tensor(places)] = 0.0
    return present, places, CanaryData(data, sizes, canaries + quiet, weights)


def drive_real_example(
    plan: Plan,
    directory: str | Path,
    model: nn.Module,
    data: Any,
    loss: Any,
    *,
    weight: float = 1e4,
    example: int = 0,
    examples: int | None = None,
    secret: Secret | None = None,
    mode: str = "hooks",
    physical: int | None = None,
    options: dict[str, Any] | None = None,
    level: float = 0.01,
) -> StatisticalTest:
    """Test whether the contribution of one real example is clipped, through all layers of the model.

    The example's loss has a large weight, and all other examples have weight 0. Use a plan with little noise. The test
    then detects a contribution that is too large by one percent, whichever layer it comes from.

    **Guarantee**: a false alarm has probability at most `level` under two conditions. The noise is Gaussian and as
    claimed. The example contributes at most the clipping norm in the steps in which it takes part, and nothing in other
    steps.

    Args:
        plan: plan to train with.
        directory: directory of the run; must be empty.
        model: model to train; a copy of it is trained.
        data: data set with items (input, target).
        loss: loss of the model with an attribute `reduction`.
        weight: factor of the example's loss.
        example: index of the example.
        examples: number of examples; by default, the number in the plan's problem.
        secret: secret of the run; None for a fresh one.
        mode: `grad_sample_mode` of the engine.
        physical: largest number of examples in one forward and backward pass; None for no limit.
        options: other options of `make_private`.
        level: largest probability of a false alarm.
    """
    secret = Secret.generate() if secret is None else secret
    total = examples or plan.problem.examples or len(data)
    weights = torch.zeros(total)
    weights[example] = weight
    dataset = CanaryData(data, {}, 2, weights)
    module = CanaryModel(copy.deepcopy(model), 2)
    rows, part = _train(
        plan,
        directory,
        module,
        dataset,
        loss,
        lambda wrapped: [p for p in wrapped.parameters() if p.requires_grad],
        secret,
        mode,
        "mean",
        physical,
        0.0,
        options or {},
    )
    return real_example_test(plan.mechanism, released_matrix(rows, plan.problem.clip_norm), part[:, example], level)


def real_example_test(
    mechanism: Mechanism, released: Array, taking_part: Array, level: float = 0.01
) -> StatisticalTest:
    """Test, by the norms of released sums, whether they can be noise plus one contribution within the clipping norm.

    Args:
        mechanism: claimed mechanism.
        released: released sums over all parameters, in units of the clipping norm, shape (steps, entries).
        taking_part: for each step, True if the example took part. No other example may contribute.
        level: largest probability of a false alarm.
    """
    from scipy.stats import chi2, ncx2

    deviation = mechanism.noise_std * np.linalg.norm(mechanism.strategy.noising(), axis=1)
    squares = (released**2).sum(axis=1)
    entries, p_in, p_out = released.shape[1], [], []
    for square, part, sd in zip(squares, taking_part, deviation, strict=True):
        if part:
            allowed = (1.0 + TOLERANCE) ** 2
            p_in.append(float(np.nan_to_num(ncx2.sf(square / sd**2, entries, allowed / sd**2), nan=0.0)))
        else:
            p_out.append(2.0 * float(min(chi2.sf(square / sd**2, entries), chi2.cdf(square / sd**2, entries))))
    parts = [("norm", min(1.0, max(len(p_in), 1) * min(p_in, default=1.0)))]
    parts.append(("other steps", min(1.0, max(len(p_out), 1) * min(p_out, default=1.0))))
    return StatisticalTest("contribution of a real example", tuple(parts), level, len(squares))


def _train(
    plan: Plan,
    directory: str | Path,
    module: nn.Module,
    dataset: CanaryData,
    loss: Any,
    watched: Callable[[nn.Module], list[Any]],
    secret: Secret,
    mode: str,
    loss_reduction: str,
    physical: int | None,
    learning_rate: float,
    options: dict[str, Any],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> tuple[list[Array], Any]:
    """Train to the end. Return the released sum of each step, and flags (step, example) that say who took part."""
    engine = PrivacyEngine(directory, secret=secret)
    made = engine.make_private(
        module,
        optimizer(module.parameters(), lr=learning_rate),
        dataset,
        plan,
        grad_sample_mode=mode,
        criterion=CanaryLoss(loss, loss_reduction),
        loss_reduction=loss_reduction,
        **options,
    )
    wrapped, private, loader = made[0], made[1], made[-1]
    criterion = made[2] if len(made) == 4 else CanaryLoss(loss, loss_reduction)
    rows: list[Array] = []
    tensors = watched(wrapped)
    divisor = 1.0 if loss_reduction == "sum" else float(private.expected_batch_size * _divided_by(wrapped))

    def record(*_: Any) -> None:
        whole = [_whole(p.grad) for p in tensors]
        rows.append(divisor * torch.cat([g.reshape(-1).double() for g in whole]).cpu().numpy())

    private.original_optimizer.register_step_pre_hook(record)
    part = np.zeros((plan.steps, len(dataset)), dtype=np.bool_)
    while len(rows) < plan.steps:
        with _physical_batches(loader, private, physical) as batches:
            for x, vector, y, weights, indices in batches:
                part[len(rows), indices.numpy()] = True
                private.zero_grad()
                criterion(wrapped(x, vector), (y, weights)).backward()
                private.step()
    engine.close()
    if dist.is_initialized() and dist.get_world_size() > 1:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, part)
        part = np.logical_or.reduce(found)
    return rows, part


def _physical_batches(loader: Any, optimizer: Any, physical: int | None) -> Any:
    if physical is None:
        return nullcontext(loader)
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    return BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer)


def _canary_weight(module: nn.Module) -> Any:
    found = [p for name, p in module.named_parameters() if name.endswith("canary.weight")]
    assert len(found) == 1
    return found[0]


def _divided_by(module: nn.Module) -> int:
    """Return the factor by which the engine divided the expected batch size.

    This is the number of ranks for Opacus's DDP, and otherwise 1.
    """
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP

    inner = getattr(module, "_module", module)
    return dist.get_world_size() if isinstance(inner, DPDDP) else 1


def _whole(gradient: Any) -> torch.Tensor:
    """Return the full gradient, gathered from all ranks if it is sharded."""
    return (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).detach()
