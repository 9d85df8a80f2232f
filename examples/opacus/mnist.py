"""Opacus's examples/mnist.py with Antiphase, on generated images.

Lines that change from Opacus to Antiphase end in "# Antiphase". Other differences are the data, fewer options, and the
progress bar.

The training loss that it prints has no noise, and epsilon does not cover it: look at it, but do not publish it.

Ported from Opacus, Copyright (c) Meta Platforms, Inc. and affiliates, Apache License 2.0.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import TensorDataset

from antiphase.torch import PrivacyEngine  # Antiphase


class SampleConvNet(nn.Module):
    """The network of Opacus's example."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        """Return the logits of images of shape (batch, 1, 28, 28)."""
        x = F.relu(self.conv1(x))  # -> [B, 16, 14, 14]
        x = F.max_pool2d(x, 2, 1)  # -> [B, 16, 13, 13]
        x = F.relu(self.conv2(x))  # -> [B, 32, 5, 5]
        x = F.max_pool2d(x, 2, 1)  # -> [B, 32, 4, 4]
        x = x.view(-1, 32 * 4 * 4)  # -> [B, 512]
        x = F.relu(self.fc1(x))  # -> [B, 32]
        return self.fc2(x)  # -> [B, 10]


def images(count, seed):
    """Return noisy images of ten patterns, in place of MNIST."""
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels)


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    epsilon = privacy_engine.get_epsilon(delta=args.delta)  # Antiphase
    print(f"Train Epoch: {epoch} \tLoss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")


def test(model, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            pred = model(data).argmax(dim=1)
            correct += pred.eq(target).sum().item()
    return correct / len(test_loader.dataset)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Opacus MNIST Example")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-n", "--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epsilon", type=float, default=4.0)  # Antiphase
    parser.add_argument("-c", "--max-per-sample-grad_norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--directory", default="run")  # Antiphase
    parser.add_argument("--examples", type=int, default=6000)
    args = parser.parse_args(argv)

    train_loader = torch.utils.data.DataLoader(images(args.examples, 1), batch_size=args.batch_size)
    test_loader = torch.utils.data.DataLoader(images(200, 2), batch_size=100)
    model = SampleConvNet()

    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    privacy_engine = PrivacyEngine(args.directory)  # Antiphase
    model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(  # Antiphase
        module=model,
        optimizer=optimizer,
        dataset=train_loader.dataset,  # Antiphase
        batch_size=args.batch_size,  # Antiphase
        epochs=args.epochs,  # Antiphase
        epsilon=args.epsilon,  # Antiphase
        delta=args.delta,  # Antiphase
        max_grad_norm=args.max_per_sample_grad_norm,
    )

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, privacy_engine, epoch)
    accuracy = test(model, test_loader)
    print(f"Test accuracy: {accuracy:.2%}")
    privacy_engine.close()  # Antiphase
    return accuracy


if __name__ == "__main__":
    main()
