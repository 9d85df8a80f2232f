"""Extracts the noise from the gradients that the inner optimizer receives, and tests whether it follows the plan.

The learning rate is 0, so the model does not change. The clipped gradient of every example is therefore computed only
once, one example at a time, without Opacus.
"""

import math

import numpy as np
import torch
from torch import nn

import antiphase as ap
from tests.torch.training import plan_for

STEPS = 500
EXAMPLES = 60
SIGMA, CLIP = 0.7, 0.3
STRATEGY = ap.strategies.BLT([0.97, 0.6], [0.2, 0.15], STEPS)
PLAN = plan_for(STRATEGY, ap.MinSeparation(15), SIGMA, CLIP, examples=EXAMPLES)


def wide_network():
    """Return a network with 1323 parameters. 500 steps of noise then determine the standard deviation to 0.1 %."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def wide_data():
    generator = torch.Generator().manual_seed(2)
    x = 3 * torch.randn(EXAMPLES, 40, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.arange(EXAMPLES) % 3)


def clipped_gradients(module, dataset, clip, per_layer=False):
    """Return the gradient of each example, clipped to norm `clip`, as one row.

    With `per_layer`, each of the m tensors of a gradient is clipped to norm clip / sqrt(m) instead.
    """
    rows = []
    for x, y in dataset:
        loss = nn.functional.cross_entropy(module(x[None]), y[None])
        parts = [g.double().reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]
        if per_layer:
            share = clip / math.sqrt(len(parts))
            rows.append(torch.cat([g * min(1, share / g.norm()) for g in parts]))
        else:
            whole = torch.cat(parts)
            rows.append(whole * min(1, clip / whole.norm()))
    return torch.stack(rows)


def added_noise(gradients, batches, clipped, divisor):
    """Return the noise that was added to the sums of the clipped gradients, one row per step."""
    sums = torch.stack([clipped[batch].sum(0) for batch in batches])
    return (divisor * gradients.double() - sums).numpy()


def scale_deviation(noise, plan=PLAN):
    """Return the distance of the mean square of z = C noise from 1, in standard deviations of the mean square.

    Noise that is 1 % too small or too large gives more than 10.
    """
    z = plan.mechanism.strategy.encoder() @ noise / (plan.mechanism.noise_std * plan.problem.clip_norm)
    return abs((z**2).mean() - 1) / math.sqrt(2 / z.size)


def covariance_deviation(noise, plan=PLAN):
    """Return the largest deviation of a covariance of two steps from sigma^2 clip^2 N N^T, in standard deviations."""
    noising = plan.mechanism.strategy.noising()
    covariance = (plan.mechanism.noise_std * plan.problem.clip_norm) ** 2 * noising @ noising.T
    found, variance = noise @ noise.T / noise.shape[1], np.diag(covariance)
    spread = np.sqrt((np.outer(variance, variance) + covariance**2) / noise.shape[1])
    return np.abs((found - covariance) / spread).max()


def entry_deviation(noise, plan=PLAN):
    """Return the largest deviation of the mean square of z over the steps for one parameter, in standard deviations."""
    z = plan.mechanism.strategy.encoder() @ noise / (plan.mechanism.noise_std * plan.problem.clip_norm)
    return np.abs((z**2).mean(0) - 1).max() / math.sqrt(2 / len(z))


def is_the_plans(noise):
    """Return True if the noise passes all three tests.

    The limits allow for the largest of 125,000 deviations of covariances and of 1,323 deviations of parameters.
    """
    return scale_deviation(noise) < 5 and covariance_deviation(noise) < 6.5 and entry_deviation(noise) < 6.5
