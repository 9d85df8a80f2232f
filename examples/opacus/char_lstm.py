"""Opacus's examples/char-lstm-classification.py with Antiphase, on generated names.

Lines that change from Opacus to Antiphase end in "# Antiphase". Other differences are the data, fewer options, and the
progress bar.

The training loss and accuracy that it prints have no noise, and epsilon does not cover them: look at them, but do not
publish them.

Ported from Opacus, Copyright (c) Meta Platforms, Inc. and affiliates, Apache License 2.0.
"""

import argparse
import random
from statistics import mean

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from antiphase.torch import PrivacyEngine  # Antiphase

VOCAB_SIZE = 256 + 3  # 256 alternatives in one byte, plus 3 special characters.
RNNS = {"lstm": DPLSTM, "gru": DPGRU, "rnn": DPRNN}
ENDINGS = ("ov", "ini", "sen", "ski")


class CharNNClassifier(nn.Module):
    """The network of Opacus's example."""

    def __init__(self, rnn_type, embedding_size, hidden_size, output_size):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, embedding_size)
        self.rnn = rnn_type(embedding_size, hidden_size, num_layers=1, bidirectional=False, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden=None):
        """Return the logits of names, given as characters of shape (batch, length)."""
        x = self.embedding(x)  # -> [B, T, D]
        x, _ = self.rnn(x, hidden)  # -> [B, T, H]
        x = x[:, -1, :]  # -> [B, H]
        return self.out_layer(x)  # -> [B, C]


def names(count, seed):
    """Return random names with four kinds of endings, in place of the names of 18 languages."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        label = chance.randrange(len(ENDINGS))
        name = "".join(chance.choices("aeioubdgkmnrst", k=chance.randint(2, 5))) + ENDINGS[label]
        found.append((torch.tensor([256, *name.encode(), 257]), torch.tensor(label)))
    return found


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([elem[0] for elem in batch], batch_first=True, padding_value=padding_idx)
    y = torch.stack([elem[1] for elem in batch]).long()
    return x, y


def train(model, criterion, optimizer, train_loader, epoch, privacy_engine, target_delta):
    model.train()
    accs = []
    losses = []
    for x, y in train_loader:
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()

        optimizer.step()
        optimizer.zero_grad()

        accs.append(float(logits.argmax(-1).eq(y).sum()) / len(y))
        losses.append(loss.item())

    printstr = f"\t Epoch {epoch}. Accuracy: {mean(accs):.6f} | Loss: {mean(losses):.6f}"
    epsilon = privacy_engine.get_epsilon(delta=target_delta)  # Antiphase
    print(printstr + f" | (ε = {epsilon:.2f}, δ = {target_delta})")


def test(model, test_loader):
    model.eval()
    accs = []
    with torch.no_grad():
        for x, y in test_loader:
            accs.append(float(model(x).argmax(-1).eq(y).sum()) / len(y))
    return mean(accs)


def main(argv=None):
    parser = argparse.ArgumentParser(description="PyTorch Name language classification DP Training")
    parser.add_argument("-b", "--batch-size", default=200, type=int)
    parser.add_argument("--mode", default="lstm", choices=list(RNNS))
    parser.add_argument("--embedding-size", default=64, type=int)
    parser.add_argument("--hidden-size", default=128, type=int)
    parser.add_argument("--learning-rate", default=2.0, type=float)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=8.0)  # Antiphase
    parser.add_argument("-c", "--max-per-sample-grad-norm", type=float, default=1.5)
    parser.add_argument("--delta", type=float, default=8e-5)
    parser.add_argument("--directory", default="run")  # Antiphase
    parser.add_argument("--examples", type=int, default=2000)
    args = parser.parse_args(argv)

    train_ds, test_ds = names(args.examples, 1), names(200, 2)
    model = CharNNClassifier(RNNS[args.mode], args.embedding_size, args.hidden_size, len(ENDINGS))
    train_loader = DataLoader(train_ds, batch_size=args.batch_size, collate_fn=padded_collate)
    test_loader = DataLoader(test_ds, batch_size=100, collate_fn=padded_collate)

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)

    privacy_engine = PrivacyEngine(args.directory)  # Antiphase
    model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(  # Antiphase
        module=model,
        optimizer=optimizer,
        dataset=train_loader.dataset,  # Antiphase
        loader_options={"collate_fn": padded_collate},  # Antiphase
        batch_size=args.batch_size,  # Antiphase
        epochs=args.epochs,  # Antiphase
        epsilon=args.epsilon,  # Antiphase
        delta=args.delta,  # Antiphase
        max_grad_norm=args.max_per_sample_grad_norm,
    )

    for epoch in range(args.epochs):
        train(model, criterion, optimizer, train_loader, epoch, privacy_engine, args.delta)
    accuracy = test(model, test_loader)
    print(f"Test accuracy: {accuracy:.2%}")
    privacy_engine.close()  # Antiphase
    return accuracy


if __name__ == "__main__":
    main()
