"""Small models for the PyTorch benchmark: a Llama with about 0.6 million parameters and a convolutional network."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A decoder layer: attention and a gated feed-forward network, each after RMSNorm."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        y = self.before_feed_forward(x)
        out: torch.Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return out


class Llama(nn.Module):
    """A decoder-only language model. The second dimension of its output is the vocabulary, as cross entropy needs."""

    def __init__(self, vocabulary: int, width: int, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*[Block(width, hidden, heads) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.layers(self.tokens(tokens)))).transpose(1, 2)
        return out


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of coordinates by an angle proportional to the position."""
    length, width = x.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(length)[:, None] * frequency
    left, right = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def convnet(channels: int) -> nn.Sequential:
    """Return Opacus's network for CIFAR-10: four convolutions with average pooling, then a linear layer."""
    sizes = [3, channels, channels, 2 * channels, 4 * channels]
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16 * channels, 10))
