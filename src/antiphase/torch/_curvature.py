"""Estimates the curvatures of a PyTorch model's loss on public data, for planning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._objective import Curvatures, Steps
from antiphase._spectrum import curvatures_from_spectrum


def curvatures(
    module: torch.nn.Module,
    loss: Callable[[], torch.Tensor],
    *,
    learning_rate: float,
    clip_factor: float = 1.0,
    iterations: int = 20,
    probes: int = 4,
    seed: int = 0,
    steps: Steps | float = "last",
) -> Curvatures:
    """Estimate the curvatures (Hessian eigenvalues) of a loss, to pass to `Problem(objective=...)`.

    The values in the result are eigenvalue x learning_rate x clip_factor. The method is stochastic Lanczos quadrature.
    Use public data only: a plan that is made with the result depends on the data, and the privacy guarantee does not
    cover what the plan reveals about the data.

    Args:
        module: model. The Hessian is with respect to the model's trainable parameters.
        loss: function that returns the mean loss of `module` over a public batch. Switch dropout off first.
        learning_rate: largest learning rate of the private run.
        clip_factor: factor, at most 1, by which clipping shrinks the mean gradient.
        iterations: number of Hessian-vector products per probe.
        probes: number of random vectors to average over.
        seed: seed for the random vectors.
        steps: steps whose noise counts in the objective, as in `Curvatures`.

    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> x = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    >>> found = curvatures(model, lambda: model(x).square().sum() / 2, learning_rate=0.1)
    >>> [round(float(h), 3) for h in sorted(set(found.values.round(6)))]
    [0.1, 0.4, 1.6]
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise InvalidArgument("The module has no trainable parameters.", hint="set requires_grad on some parameters")
    size = sum(p.numel() for p in parameters)
    value = loss()
    if not isinstance(value, torch.Tensor) or value.ndim != 0:
        got = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InvalidArgument(
            f"loss() must return a tensor without dimensions. Got {got} (shape or type) instead.",
            hint="return the mean over the batch",
        )
    gradients = torch.autograd.grad(value, parameters, create_graph=True, materialize_grads=True)

    def multiply(vector: Array) -> Array:
        parts = torch.split(torch.as_tensor(vector), [p.numel() for p in parameters])
        direction = [part.to(p).view_as(p) for part, p in zip(parts, parameters, strict=True)]
        products = torch.autograd.grad(
            gradients, parameters, direction, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return np.concatenate([p.detach().to("cpu", torch.float64).numpy().ravel() for p in products])

    return curvatures_from_spectrum(
        multiply,
        size,
        owner="curvatures",
        learning_rate=learning_rate,
        clip_factor=clip_factor,
        iterations=iterations,
        probes=probes,
        seed=seed,
        steps=steps,
    )
