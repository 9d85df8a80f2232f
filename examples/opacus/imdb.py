"""Opacus's examples/imdb.py with Antiphase, on generated reviews.

Lines that change from Opacus to Antiphase end in "# Antiphase". Other differences are the data, fewer options, and the
progress bar. Opacus's `squeeze()` without a dimension is `squeeze(2)`, so that a batch may have one example.

The training loss that it prints has no noise, and epsilon does not cover it: look at it, but do not publish it.

Ported from Opacus, Copyright (c) Meta Platforms, Inc. and affiliates, Apache License 2.0.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from antiphase.torch import PrivacyEngine  # Antiphase

VOCAB_SIZE = 500


class SampleNet(nn.Module):
    """The network of Opacus's example."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, 16)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc1 = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x):
        """Return the logits of reviews, given as words of shape (batch, length)."""
        x = self.emb(x)
        x = x.transpose(1, 2)
        x = self.pool(x).squeeze(2)
        x = self.fc1(x)
        x = F.relu(x)
        return self.fc2(x)


def reviews(count, seed):
    """Return reviews in which some words occur more often if the review is positive, in place of IMDB."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        label, length = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((0, 2), (20, 60)))
        words = torch.randint(1, VOCAB_SIZE, (length,), generator=generator)
        some = torch.rand(length, generator=generator) < 0.3
        found.append({"input_ids": torch.where(some, words // 2 + label * VOCAB_SIZE // 2, words), "label": label})
    return found


def binary_accuracy(preds, y):
    correct = (y.long() == torch.argmax(preds, dim=1)).float()
    return correct.sum() / len(correct)


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([elem["input_ids"] for elem in batch], batch_first=True, padding_value=padding_idx)
    y = torch.tensor([elem["label"] for elem in batch]).long()
    return x, y


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    criterion = nn.CrossEntropyLoss()
    losses = []
    model = model.train()

    for data, label in train_loader:
        optimizer.zero_grad()
        predictions = model(data)
        loss = criterion(predictions, label)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    epsilon = privacy_engine.get_epsilon(delta=args.delta)  # Antiphase
    print(f"Train Epoch: {epoch} \tTrain Loss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")


def evaluate(model, test_loader):
    model = model.eval()
    with torch.no_grad():
        accuracies = [binary_accuracy(model(data), label).item() for data, label in test_loader]
    return float(np.mean(accuracies))


def main(argv=None):
    parser = argparse.ArgumentParser(description="Opacus IMDB Example")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-n", "--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--epsilon", type=float, default=8.0)  # Antiphase
    parser.add_argument("-c", "--max-per-sample-grad_norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--directory", default="run")  # Antiphase
    parser.add_argument("--examples", type=int, default=2000)
    args = parser.parse_args(argv)

    options = {"collate_fn": padded_collate}
    train_loader = DataLoader(reviews(args.examples, 1), batch_size=args.batch_size, shuffle=True, **options)
    test_loader = DataLoader(reviews(200, 2), batch_size=100, **options)

    model = SampleNet(vocab_size=VOCAB_SIZE)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    privacy_engine = PrivacyEngine(args.directory)  # Antiphase
    model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(  # Antiphase
        module=model,
        optimizer=optimizer,
        dataset=train_loader.dataset,  # Antiphase
        loader_options=options,  # Antiphase
        batch_size=args.batch_size,  # Antiphase
        epochs=args.epochs,  # Antiphase
        epsilon=args.epsilon,  # Antiphase
        delta=args.delta,  # Antiphase
        max_grad_norm=args.max_per_sample_grad_norm,
    )

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, privacy_engine, epoch)
    accuracy = evaluate(model, test_loader)
    print(f"Test accuracy: {accuracy:.2%}")
    privacy_engine.close()  # Antiphase
    return accuracy


if __name__ == "__main__":
    main()
