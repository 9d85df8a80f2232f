"""A small model, its data, and training loops that record the noisy gradients."""

from contextlib import nullcontext
from dataclasses import replace

import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch

EXAMPLES = 40
STEPS = 12
SECRET = ap.Secret.insecure(5)
# Opacus causes this harmless warning with backward hooks on a model whose input needs no gradient.
HOOKS = "ignore:Full backward hook is firing:UserWarning"
# PEFT reads an attribute that transformers has renamed.
PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"


def plan_for(
    strategy=None, participation=None, noise_std=3.0, clip_norm=1.0, batch_size=None, examples=EXAMPLES, unit="example"
):
    strategy = ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], STEPS) if strategy is None else strategy
    participation = participation or ap.MinSeparation(4)
    mechanism = ap.Mechanism(strategy, participation, noise_std)
    guarantee = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(
        steps=strategy.steps,
        budget=ap.Budget(min(max(8.0, guarantee.value), 1e10), 1e-6),
        examples=examples,
        batch_size=batch_size,
        participation=participation,
        clip_norm=clip_norm,
        unit=unit,
    )
    deviation = "hardly any noise, for a test" if guarantee.value > 1e10 else ""
    return ap.Plan(problem, mechanism, guarantee, error=1.0, deviation=deviation)


def lattice_plan_for(strategy=None, parameters=53, **options):
    """Return a plan like that of `plan_for` with lattice noise. `network` has 53 parameters."""
    strategy = ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], STEPS) if strategy is None else strategy
    plain = plan_for(ap.rounded_strategy(strategy), **options)
    given, clip_norm = plain.mechanism, plain.problem.clip_norm
    lattice = ap.choose_lattice(given.strategy, given.participation, given.noise_std, parameters, clip_norm)
    mechanism = replace(given, lattice=lattice)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(max(plain.problem.budget.epsilon, guarantee.value), 1e-6)
    problem = replace(plain.problem, budget=budget, lattice=True, parameters=parameters)
    return ap.Plan(problem, mechanism, guarantee, error=1.0, deviation=plain.deviation)


def data(examples=EXAMPLES):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(examples, 6, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def private(directory, plan, module=None, lr=0.1, momentum=0.9, dataset=None, **options):
    """Return engine, module, optimizer, criterion and loader, for any mode."""
    module = network() if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    engine = antiphase.torch.PrivacyEngine(directory, secret=SECRET)
    made = engine.make_private(module, optimizer, data() if dataset is None else dataset, plan, **options)
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
    return engine, made[0], made[1], criterion, made[-1]


def pieces(loader, optimizer, physical):
    """Return the loader. If `physical` is given, return Opacus's manager that splits its batches to this size."""
    if physical is None:
        return nullcontext(loader)
    return BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer)


def train(module, optimizer, criterion, loader, epochs, physical=None):
    """Train with the loop of Opacus's documentation."""
    for _ in range(epochs):
        with pieces(loader, optimizer, physical) as batches:
            for x, y in batches:
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()


def epochs_of(plan, loader):
    return -(-plan.steps // len(loader))


def local(tensor):
    """Return a copy of the whole tensor. If the tensor is sharded, its parts are gathered."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def record(optimizer):
    """Return a list that will receive the gradients of each step of the inner optimizer."""
    steps, inner = [], optimizer.original_optimizer.step

    def step(*args, **kwargs):
        steps.append(torch.cat([local(p.grad).reshape(-1) for p in optimizer.params]))
        return inner(*args, **kwargs)

    optimizer.original_optimizer.step = step
    return steps


def run(directory, plan, module=None, physical=None, **options):
    """Train to the end, and return the final parameters and the gradients of all steps."""
    engine, module, optimizer, criterion, loader = private(directory, plan, module, **options)
    gradients = record(optimizer)
    train(module, optimizer, criterion, loader, epochs_of(plan, loader), physical)
    parameters = torch.cat([local(p).reshape(-1) for p in optimizer.params])
    engine.close()
    return parameters, torch.stack(gradients)
