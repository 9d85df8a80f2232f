"""What audits of the torch engine share: a model of several layers, its data, and one call for one audit."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.audit.torch as driver
from antiphase.audit import evaluate
from tests.audit.engines.models import CANARIES, EXAMPLES, QUIET, plan


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def data(examples=EXAMPLES):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(examples, 6, generator=generator)
    return TensorDataset(x, torch.arange(examples) % 3)


def released(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    secret = ap.Secret.insecure(seed)
    options = {"canaries": CANARIES, "quiet": QUIET, "secret": secret, **options}
    return driver.drive(given, directory, options.pop("model", network()), data(), nn.CrossEntropyLoss(), **options)


def audit(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    return evaluate(given, released(directory, given, seed, **options))


def real_example(directory, given=None, seed=1, model=None, **options):
    given = plan(ap.EveryStep(), noise_std=1e-4, batch_size=EXAMPLES) if given is None else given
    secret = ap.Secret.insecure(seed)
    model = network() if model is None else model
    return driver.drive_real_example(given, directory, model, data(), nn.CrossEntropyLoss(), secret=secret, **options)
