"""Opacus's examples/mnist_lightning.py with Antiphase, on generated images.

Lines that change from Opacus to Antiphase end in "# Antiphase". Other differences are the data, fewer options, and the
metrics of torchmetrics. Needs Lightning: pip install lightning.

Ported from Opacus, Copyright (c) Meta Platforms, Inc. and affiliates, Apache License 2.0.
"""

import argparse

import lightning as pl
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch import PrivacyEngine  # Antiphase


class LitSampleConvNetClassifier(pl.LightningModule):
    """The network of Opacus's example, made private before training."""

    def __init__(self, privacy_engine, lr=0.1, delta=1e-5):
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
        self.delta = delta
        self.privacy_engine = privacy_engine
        self.optimizer = optim.SGD(self.model.parameters(), lr=self.lr, momentum=0)

    def make_private(self, dataset, **options):
        """Make the model and the optimizer private, and return the private data loader."""
        self.model, self.optimizer, loader = self.privacy_engine.make_private_with_epsilon(  # Antiphase
            module=self.model,
            optimizer=self.optimizer,
            dataset=dataset,  # Antiphase
            delta=self.delta,  # Antiphase
            **options,  # Antiphase
        )
        return loader

    def configure_optimizers(self):
        """Return the private optimizer."""
        return self.optimizer

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        data, target = batch
        loss = F.cross_entropy(self.model(data), target)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch, batch_idx):
        """Log the accuracy of a batch."""
        data, target = batch
        correct = self.model(data).argmax(1).eq(target).float().mean()
        self.log("test_accuracy", correct, on_step=False, on_epoch=True)

    def on_train_epoch_end(self):
        """Log the privacy spent."""
        epsilon = self.privacy_engine.get_epsilon(self.delta)
        self.log("epsilon", epsilon, on_epoch=True)


def images(count, seed):
    """Return noisy images of ten patterns, in place of MNIST."""
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 1, 28, 28, generator=generator), labels)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Training MNIST classifier with Opacus and PyTorch Lightning")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=4.0)  # Antiphase
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--directory", default="run")  # Antiphase
    parser.add_argument("--examples", type=int, default=6000)
    args = parser.parse_args(argv)

    with PrivacyEngine(args.directory) as privacy_engine:  # Antiphase
        model = LitSampleConvNetClassifier(privacy_engine)
        data = model.make_private(
            images(args.examples, 1),
            batch_size=args.batch_size,  # Antiphase
            epochs=args.epochs,  # Antiphase
            epsilon=args.epsilon,  # Antiphase
            max_grad_norm=args.max_grad_norm,
        )
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = pl.Trainer(max_epochs=args.epochs, enable_model_summary=False, accelerator="cpu", **quiet)
        trainer.fit(model, data)
        (found,) = trainer.test(model, DataLoader(images(200, 2), batch_size=100), verbose=False)
        print(f"Test accuracy: {found['test_accuracy']:.2%}, epsilon {privacy_engine.get_epsilon(1e-5):.2f}")
        return found["test_accuracy"]


if __name__ == "__main__":
    main()
