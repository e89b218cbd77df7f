"""A small neural network for 8x8 handwritten digits, with one hidden layer and plain SGD, in numpy.

It replaces CREW's MobileNet on MNIST, which needs a deep-learning framework. The experiments count how many rounds of
averaging training needs; the quality of the model does not matter. All parameters are one vector, so that averaging
models is averaging vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tradewind.errors import InputError

Vector = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]

PIXELS, HIDDEN, CLASSES = 64, 32, 10
TEST_SHARE = 0.2
_SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
_ENDS = np.cumsum([np.prod(shape) for shape in _SHAPES])


@dataclass(frozen=True, eq=False)
class Digits:
    """The images, as rows of 64 numbers between 0 and 1, and their labels."""

    train_images: Vector
    train_labels: Labels
    test_images: Vector
    test_labels: Labels


@cache
def load_digits() -> Digits:
    """The 1797 digits of the UCI data set in scikit-learn, always split in the same way.

    Raises `InputError` if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise InputError(
            "training needs the digits data set of scikit-learn, which is not installed. "
            "Install it with: pip install 'tradewind[reproduce]'"
        ) from error
    images, labels = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order] / 16.0, labels[order].astype(np.int64)
    test = round(TEST_SHARE * len(labels))
    return Digits(images[test:], labels[test:], images[:test], labels[:test])


def deal(labels: Labels, workers: int, rng: np.random.Generator, concentration: float | None = None) -> list[Rows]:
    """The rows of the samples of each worker: random, or (non-IID) with a different mixture of classes for each.

    With a `concentration` every worker draws its mixture from a Dirichlet distribution (Hsu et al. 2019); the smaller
    it is, the fewer classes a worker has. Samples are drawn without replacement, in equal numbers for all workers.
    """
    if concentration is None:
        return np.array_split(rng.permutation(len(labels)), workers)
    left = {digit: rng.permutation(np.flatnonzero(labels == digit)).tolist() for digit in range(CLASSES)}
    mixtures = rng.dirichlet(np.full(CLASSES, concentration), size=workers)
    hands: list[list[int]] = [[] for _ in range(workers)]
    for _ in range(len(labels) // workers):
        for hand, mixture in zip(hands, mixtures, strict=True):
            there = np.array([share if left[digit] else 0.0 for digit, share in enumerate(mixture.tolist())])
            if not there.any():  # its classes are used up: take any that are left
                there = np.array([float(len(left[digit])) for digit in range(CLASSES)])
            hand.append(left[int(rng.choice(CLASSES, p=there / there.sum()))].pop())
    return [np.array(hand) for hand in hands]


def fresh_model(rng: np.random.Generator) -> Vector:
    """A new model: random weights scaled by the size of their layer, zero biases."""
    weights = [
        rng.normal(0.0, np.sqrt(2.0 / shape[0]), size=shape) if len(shape) == 2 else np.zeros(shape)
        for shape in _SHAPES
    ]
    return np.concatenate([layer.ravel() for layer in weights])


def accuracy(model: Vector, images: Vector, labels: Labels) -> float:
    """The fraction of these images that the model classifies correctly."""
    _, scores = _forward(model, images)
    return float((scores.argmax(axis=1) == labels).mean())


def loss(model: Vector, images: Vector, labels: Labels) -> float:
    """The model's cross-entropy on these images."""
    _, scores = _forward(model, images)
    return -float(np.log(_probabilities(scores)[np.arange(len(labels)), labels]).mean())


def gradient(model: Vector, images: Vector, labels: Labels) -> Vector:
    """The gradient of the cross-entropy."""
    _, _, out, _ = _layers(model)
    hidden, scores = _forward(model, images)
    error = _probabilities(scores)
    error[np.arange(len(labels)), labels] -= 1.0
    error /= len(labels)
    back = (error @ out.T) * (hidden > 0)
    parts = (images.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0))
    return np.concatenate([part.ravel() for part in parts])


def _layers(model: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    into, bias, out, offset = (
        part.reshape(shape) for part, shape in zip(np.split(model, _ENDS[:-1]), _SHAPES, strict=True)
    )
    return into, bias, out, offset


def _forward(model: Vector, images: Vector) -> tuple[Vector, Vector]:
    into, bias, out, offset = _layers(model)
    hidden = np.maximum(images @ into + bias, 0.0)
    return hidden, hidden @ out + offset


def _probabilities(scores: Vector) -> Vector:
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Vector = raised / raised.sum(axis=1, keepdims=True)
    return shares
