"""A small neural network for digits in numpy, which the demo trains where PyTorch is not installed.

All parameters are one vector, and so is the gradient, which the sites average.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

LEARNING_RATE, MOMENTUM = 0.05, 0.9


def parameter_count(widths: tuple[int, ...]) -> int:
    """The number of weights and biases of a network with layers of these widths.

    >>> parameter_count((64, 32, 10))
    2410
    """
    return sum((a + 1) * b for a, b in pairwise(widths))


class Perceptron:
    """A multi-layer perceptron with ReLU, softmax cross-entropy, and SGD with momentum.

    >>> rng = np.random.default_rng(0)
    >>> images, labels = rng.random((8, 4), dtype=np.float32), np.arange(8) % 2
    >>> model = Perceptron((4, 16, 2), seed=1)
    >>> before = model.loss(images, labels)
    >>> for _ in range(20):
    ...     model.learn(model.gradient(images, labels)[1])
    >>> model.loss(images, labels) < before
    True
    """

    def __init__(self, widths: tuple[int, ...], seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.parameters: Vector = np.zeros(parameter_count(widths), np.float32)
        self._velocity = np.zeros_like(self.parameters)
        self._widths = widths
        for weights, _ in self._layers(self.parameters):
            weights[...] = rng.normal(0.0, np.sqrt(2.0 / len(weights)), weights.shape)

    def gradient(self, images: Vector, labels: Labels) -> tuple[float, Vector]:
        """The loss on a batch, and its gradient."""
        inputs, shares = self._forward(images)
        loss = _cross_entropy(shares, labels)
        error = shares
        error[np.arange(len(labels)), labels] -= 1.0
        error /= len(labels)
        gradient = np.empty_like(self.parameters)
        layers = list(zip(self._layers(self.parameters), self._layers(gradient), inputs, strict=True))
        for (weights, _), (into, bias), seen in reversed(layers):
            into[...] = seen.T @ error
            bias[...] = error.sum(axis=0)
            error = (error @ weights.T) * (seen > 0)
        return loss, gradient

    def learn(self, gradient: Vector) -> None:
        """Take one SGD step with momentum."""
        self._velocity *= MOMENTUM
        self._velocity += gradient
        self.parameters -= LEARNING_RATE * self._velocity

    def loss(self, images: Vector, labels: Labels) -> float:
        """The model's cross-entropy on these images."""
        return _cross_entropy(self._forward(images)[1], labels)

    def accuracy(self, images: Vector, labels: Labels) -> float:
        """The fraction of these images that the model classifies correctly."""
        return float((self._forward(images)[1].argmax(axis=1) == labels).mean())

    def digest(self) -> str:
        """A SHA-256 digest of all parameters, in hexadecimal."""
        return hashlib.sha256(self.parameters.tobytes()).hexdigest()

    def _layers(self, vector: Vector) -> list[tuple[Vector, Vector]]:
        """Weights and biases of each layer, as views."""
        layers, start = [], 0
        for a, b in pairwise(self._widths):
            middle, end = start + a * b, start + (a + 1) * b
            layers.append((vector[start:middle].reshape(a, b), vector[middle:end]))
            start = end
        return layers

    def _forward(self, images: Vector) -> tuple[list[Vector], Vector]:
        """The input of each layer, and the probability of each class."""
        inputs, values = [], images
        for weights, bias in self._layers(self.parameters):
            inputs.append(values)
            values = values @ weights + bias
            scores = values
            values = np.maximum(values, 0.0)
        shares: Vector = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return inputs, shares


def _cross_entropy(shares: Vector, labels: Labels) -> float:
    return -float(np.log(shares[np.arange(len(labels)), labels]).mean())
