"""Small models of the kinds that the papers train, for experiments on processors: CNNs like AlexNet and ResNet, a GPT.

They have the shape of their namesakes and a thousandth of their size, so that eight sites train on two cores. None has
buffers (groups instead of batches are normalised), so that averaging parameters is averaging the model.
"""

from __future__ import annotations

import torch
from torch import nn

from tradewind.torch.demo import perceptron

VOCABULARY = 96
"""Printable ASCII, and one token for the line break and everything else."""


class _Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, out), nn.GroupNorm(4, out)])
        self.shortcut = nn.Identity() if (into, stride) == (out, 1) else nn.Conv2d(into, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both branches."""
        made = torch.relu(self.norms[0](self.first(x)))
        summed: torch.Tensor = self.norms[1](self.second(made)) + self.shortcut(x)
        return torch.relu(summed)


class _Gpt(nn.Module):
    """Two layers of causal attention over characters."""

    def __init__(self, width: int = 32, layers: int = 2, heads: int = 2, context: int = 32) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(layers)
            ]
        )
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of the next character after each."""
        length = tokens.shape[1]
        x = self.token(tokens) + self.place(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        made: torch.Tensor = self.scores(x)
        return made


def make_gpt(width: int, layers: int, heads: int, context: int) -> nn.Module:
    """A GPT over characters of this size."""
    return _Gpt(width, layers, heads, context)


def make_resnet(width: int) -> nn.Module:
    """A residual CNN for 28x28 images whose stages have `width` channels, twice and four times as many."""
    stem = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.GroupNorm(4, width), nn.ReLU())
    blocks = (_Block(width, width, 1), _Block(width, 2 * width, 2), _Block(2 * width, 4 * width, 2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


def make_model(kind: str) -> nn.Module:
    """The model of that kind: `perceptron` for 8x8 digits, `alexnet` or `resnet` for 28x28 images, `gpt` for text."""
    if kind == "perceptron":
        return perceptron((64, 128, 128, 10))
    if kind == "gpt":
        return _Gpt()
    if kind == "alexnet":
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, 2, 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(144, 96),
            nn.ReLU(),
            nn.Linear(96, 10),
        )
    return make_resnet(8)
