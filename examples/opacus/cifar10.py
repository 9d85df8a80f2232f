"""Opacus's examples/cifar10.py with Antiphase, on generated images, in one process.

Lines that change from Opacus to Antiphase end in "# Antiphase". Other differences are the data, fewer options, and the
progress bar. The learning rate follows a cosine over the steps instead of the epochs.

The training loss that it prints has no noise, and epsilon does not cover it: look at it, but do not publish it.

Ported from Opacus, Copyright (c) Meta Platforms, Inc. and affiliates, Apache License 2.0.
"""

import argparse

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from antiphase.torch import PrivacyEngine  # Antiphase


def convnet(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.Conv2d(32, 64, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.Conv2d(64, 64, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.Conv2d(64, 128, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(start_dim=1, end_dim=-1),
        nn.Linear(128, num_classes, bias=True),
    )


def images(count, seed, size):
    """Return noisy images of ten patterns, in place of CIFAR-10."""
    patterns = torch.randn(10, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 3, size, size, generator=generator), labels)


def accuracy(preds, labels):
    return (preds == labels).mean()


def train(args, model, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    for i, (images, target) in enumerate(train_loader):
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        losses.append(loss.item())

        optimizer.step()
        optimizer.zero_grad()

        if i % args.print_freq == 0:
            epsilon = privacy_engine.get_epsilon(delta=args.delta)  # Antiphase
            print(f"\tTrain Epoch: {epoch} \tLoss: {np.mean(losses):.6f} (ε = {epsilon:.2f}, δ = {args.delta})")


def test(model, test_loader):
    model.eval()
    top1_acc = []
    with torch.no_grad():
        for images, target in test_loader:
            preds = np.argmax(model(images).numpy(), axis=1)
            top1_acc.append(accuracy(preds, target.numpy()))
    return float(np.mean(top1_acc))


def main(argv=None):
    parser = argparse.ArgumentParser(description="PyTorch CIFAR10 DP Training")
    parser.add_argument("--grad_sample_mode", type=str, default="hooks")
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("--batch-size", default=200, type=int)
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("-p", "--print-freq", default=10, type=int)
    parser.add_argument("--epsilon", type=float, default=8.0)  # Antiphase
    parser.add_argument("-c", "--max-per-sample-grad_norm", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--clip_per_layer", action="store_true")
    parser.add_argument("--directory", default="run")  # Antiphase
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    args = parser.parse_args(argv)

    train_loader = torch.utils.data.DataLoader(images(args.examples, 1, args.size), batch_size=args.batch_size)
    test_loader = torch.utils.data.DataLoader(images(200, 2, args.size), batch_size=100)

    model = convnet(num_classes=10)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)

    clipping = "per_layer" if args.clip_per_layer else "flat"
    privacy_engine = PrivacyEngine(args.directory)  # Antiphase
    model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(  # Antiphase
        module=model,
        optimizer=optimizer,
        dataset=train_loader.dataset,  # Antiphase
        batch_size=args.batch_size,  # Antiphase
        epochs=args.epochs,  # Antiphase
        epsilon=args.epsilon,  # Antiphase
        delta=args.delta,  # Antiphase
        max_grad_norm=args.max_per_sample_grad_norm,  # Opacus divides it by sqrt(layers) for per-layer clipping
        clipping=clipping,
        grad_sample_mode=args.grad_sample_mode,
    )
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, privacy_engine.plan.steps)  # Antiphase
    privacy_engine.attach_scheduler(schedule)  # Antiphase

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, privacy_engine, epoch)
    top1_acc = test(model, test_loader)
    print(f"Test accuracy: {top1_acc:.2%}")
    privacy_engine.close()  # Antiphase
    return top1_acc


if __name__ == "__main__":
    main()
