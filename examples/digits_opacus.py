"""Train on handwritten digits with PyTorch and Opacus, with differential privacy from correlated noise.

    python examples/digits_opacus.py --directory /tmp/digits

Needs `pip install antiphase[torch] scikit-learn`. If interrupted, run it again: it resumes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def main(directory: Path, epochs: int, batch_size: int, epsilon: float) -> float:
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    dataset = TensorDataset(images[:1500], labels[:1500])

    # 1. State the problem and the privacy budget, and make a plan.
    problem = ap.Problem(
        steps=epochs * 1500 // batch_size,
        budget=ap.Budget(epsilon=epsilon, delta=1e-4),
        examples=1500,
        batch_size=batch_size,
        workload=ap.Momentum(0.9),
        memory_copies=8,
    )
    plan = ap.plan(problem)

    # 2. Create model and optimizer as usual. The engine adds sampler, clipping, noise and ledger.
    module, criterion = network(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    engine = antiphase.torch.PrivacyEngine(directory / "run")
    module, optimizer, loader = engine.make_private(module, optimizer, dataset, plan)

    # 3. Resume from the checkpoint, or start. The checkpoint contains the id of the run and the step, but no secrets.
    checkpoint = directory / "checkpoint.pt"
    if checkpoint.exists():
        stored = torch.load(checkpoint)
        module.load_state_dict(stored["module"])
        optimizer.load_state_dict(stored["optimizer"])
        engine.load_state_dict(stored["privacy"])
    else:
        engine.restart()

    # 4. Train with the usual Opacus loop, and save a checkpoint after each pass of the loader.
    while engine.step < plan.steps:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
        state = {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "privacy": engine.state_dict()}
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)

    # 5. Call `publish` before you release anything. The report states the guarantee of the steps that ran.
    engine.publish("final model")
    with torch.no_grad():
        accuracy = (module(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    report = engine.report()
    assert report.guarantee is not None
    print(f"accuracy {accuracy:.3f} after {report.steps_run} steps of {type(plan.mechanism.strategy).__name__}")
    print(f"epsilon {report.guarantee.value:.3f} at delta {report.delta} for one {report.unit}, {report.adjacency}")
    for remark in report.remarks:
        print(remark)
    engine.close()
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run and the checkpoint")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=4.0)
    main(**vars(parser.parse_args()))
