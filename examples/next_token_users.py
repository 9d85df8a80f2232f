"""Train a next-token model with user-level privacy, with PyTorch and Opacus.

    python examples/next_token_users.py --directory /tmp/users

Every user has written some text. The dataset has one item per user, so that batches, clipping and the guarantee are per
user, not per sentence. The texts are generated from the words of a small made-up language. Each user has some favourite
words. Needs `pip install antiphase[torch]`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
import antiphase.torch

LETTERS = "abcdefghijklmnopqrstuvwxyz "
CONTEXT, WRITTEN = 4, 48  # number of letters before the predicted one, and number of predicted letters per user


def texts(users: int) -> torch.Tensor:
    """Return the letters of one text per user, as integers. All users share a language, but have favourite words."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("aeiou" if i % 2 else "bcdlmnrst")) for i in range(4)) for _ in range(40)]
    common = rng.dirichlet(np.ones(40))
    rows = []
    for _ in range(users):
        own = 0.7 * common + 0.3 * rng.dirichlet(np.full(40, 0.1))
        text = " ".join(rng.choice(words, p=own) for _ in range(WRITTEN))
        rows.append([LETTERS.index(letter) for letter in text[: WRITTEN + CONTEXT]])
    return torch.tensor(rows)


def contexts(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the CONTEXT letters before each position of a text, and the letter at this position.

    The shapes are (users, positions, CONTEXT) and (users, positions).
    """
    windows = rows.unfold(1, CONTEXT + 1, 1)
    return windows[..., :-1], windows[..., -1]


class NextLetter(nn.Module):
    """Predicts the next letter from the embeddings of the letters before it, with one hidden layer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 8)
        self.hidden, self.out = nn.Linear(8 * CONTEXT, width), nn.Linear(width, len(LETTERS))

    def forward(self, before: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next letter, of shape (users, positions, letters).

        `before` has shape (users, positions, CONTEXT).
        """
        return self.out(torch.tanh(self.hidden(self.letters(before).flatten(-2))))


def loss(logits: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all users and positions. All users have the same number of positions."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), letters.flatten())


def main(directory: Path, users: int, steps: int, users_per_step: int, epsilon: float) -> float:
    before, letters = contexts(texts(users + 200))
    separation = users // users_per_step

    # A user takes part again only after all other users have taken part. A federated scheduler can guarantee this.
    problem = ap.Problem(
        steps=steps,
        budget=ap.Budget(epsilon=epsilon, delta=1 / (10 * users)),
        examples=users,
        batch_size=users_per_step,
        participation=ap.MinSeparation(separation),
        workload=ap.Momentum(0.9),
        unit="user",
    )
    plan = ap.plan(problem, families=["blt"])

    torch.manual_seed(0)
    module = NextLetter()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, momentum=0.9)
    with antiphase.torch.PrivacyEngine(directory / "run") as engine:
        dataset = TensorDataset(before[:users], letters[:users])
        module, optimizer, loader = engine.make_private(module, optimizer, dataset, plan)
        while engine.step < plan.steps:
            for x, y in loader:
                optimizer.zero_grad()
                loss(module(x), y).backward()
                optimizer.step()
        engine.publish("final model")
        report = engine.report()

    with torch.no_grad():
        bits = loss(module(before[users:]), letters[users:]).item() / math.log(2)
    assert report.guarantee is not None
    print(f"{bits:.2f} bits per letter for held-out users; a uniform guess has {math.log2(len(LETTERS)):.2f}")
    print(f"epsilon {report.guarantee.value:.3f} at delta {report.delta:.1e} for one {report.unit}")
    for remark in report.remarks:
        print(remark)
    return bits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run; use a new one each time")
    parser.add_argument("--users", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--users-per-step", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=4.0)
    main(**vars(parser.parse_args()))
