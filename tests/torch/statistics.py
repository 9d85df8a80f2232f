"""What noise was really added, from the gradients that the inner optimizer was given, and whether it is the plan's.

Gradients are those of a model that stays as it is (learning rate 0), so that the clipped gradient of every example is
computed here once, one example at a time, without Opacus.
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
    """1323 entries: 500 steps tell a standard deviation to 0.1 percent."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def wide_data():
    generator = torch.Generator().manual_seed(2)
    x = 3 * torch.randn(EXAMPLES, 40, generator=generator)
    return torch.utils.data.TensorDataset(x, torch.arange(EXAMPLES) % 3)


def clipped_gradients(module, dataset, clip, per_layer=False):
    """One row an example: its gradient, scaled down to norm `clip`, or each tensor of it to an equal share."""
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
    """What was added to the sums of the clipped gradients, one row a step."""
    sums = torch.stack([clipped[batch].sum(0) for batch in batches])
    return (divisor * gradients.double() - sums).numpy()


def scale_deviation(noise, plan=PLAN):
    """How far the mean square of z = C noise is from 1, in its standard deviations; 1 percent of noise is over 10."""
    z = plan.mechanism.strategy.encoder() @ noise / (plan.mechanism.noise_std * plan.problem.clip_norm)
    return abs((z**2).mean() - 1) / math.sqrt(2 / z.size)


def covariance_deviation(noise, plan=PLAN):
    """The largest deviation of the covariance over the steps from sigma^2 clip^2 N N^T, in standard deviations."""
    noising = plan.mechanism.strategy.noising()
    covariance = (plan.mechanism.noise_std * plan.problem.clip_norm) ** 2 * noising @ noising.T
    found, variance = noise @ noise.T / noise.shape[1], np.diag(covariance)
    spread = np.sqrt((np.outer(variance, variance) + covariance**2) / noise.shape[1])
    return np.abs((found - covariance) / spread).max()


def entry_deviation(noise, plan=PLAN):
    """The same for the mean square of each entry of the model, over the steps."""
    z = plan.mechanism.strategy.encoder() @ noise / (plan.mechanism.noise_std * plan.problem.clip_norm)
    return np.abs((z**2).mean(0) - 1).max() / math.sqrt(2 / len(z))


def is_the_plans(noise):
    """All three at once; the bounds allow for the largest of 125,000 and of 1,323 deviations."""
    return scale_deviation(noise) < 5 and covariance_deviation(noise) < 6.5 and entry_deviation(noise) < 6.5
