"""What the straggler experiments train: digits, images of clothes, or text, with the data and a model for each.

Digits come with scikit-learn. The others are Debian packages, installed or unpacked to the folder that the environment
variable REPRODUCE_DATA names (docs/guides/reproduce.md):

- Fashion-MNIST (Zalando SE, MIT licence), package `dataset-fashion-mnist`;
- the Jargon File 4.4.7 (public domain), package `jargon-text`.
"""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.errors import InputError
from tradewind.experiments.papers.digits import Labels, load_digits

DATA_VARIABLE = "REPRODUCE_DATA"
CLOTHES, TEXT = Path("usr/share/datasets/fashion-mnist"), Path("usr/share/doc/jargon-text/jargon.txt.gz")
CONTEXT = 32
TEST_IMAGES, TEST_WINDOWS = 500, 100
_FIRST, _LAST = ord(" "), ord("~")


@dataclass(frozen=True)
class Task:
    """One data set with the model that learns it."""

    kind: str
    """The model, as in `tradewind.torch.models`."""
    data: str
    learning_rate: float
    target: float
    """Accuracy that counts as reached."""
    stretch: float = 1.0
    """How much longer a step takes than one of the digits; links are as much slower, and turns longer."""
    turns: float = 1.0
    """How much longer turns are than those of the digits, beside that."""
    virtual_turns: float = 1.0
    """How much longer turns are on virtual time, which costs no waiting."""
    virtual_target: float | None = None
    """Accuracy that counts as reached on virtual time; None: `target`."""
    judged_every: int = 1
    """Steps between tests of a site's model; three times as many on virtual time, where they take the most of it."""
    batch: int = 32


TASKS = {
    "digits": Task("perceptron", "digits", 0.3, 0.94, virtual_turns=6.0),
    "alexnet": Task(
        "alexnet", "clothes", 0.15, 0.65, turns=3.0, virtual_turns=3.0, virtual_target=0.75, judged_every=4
    ),
    "resnet": Task("resnet", "clothes", 0.2, 0.65, stretch=3.0, turns=3.0, judged_every=4),
    "gpt": Task("gpt", "text", 0.5, 0.24, stretch=2.0, turns=3.0, judged_every=4, batch=16),
}


@dataclass(frozen=True, eq=False)
class Samples:
    """Training and test samples, and the class of each training sample, by which data are dealt unevenly."""

    train: npt.NDArray[Any]
    train_labels: Labels
    test: npt.NDArray[Any]
    test_labels: Labels

    @property
    def classes(self) -> Labels:
        """The class of each training sample; a text has none: all are the same."""
        return self.train_labels if self.train_labels.ndim == 1 else np.zeros(len(self.train_labels), np.int64)


@cache
def load_samples(data: str, tested: int | None = None) -> Samples:
    """The samples of `digits`, `clothes` or `text`. Raises `InputError` if they are not installed.

    `tested`: how many images or windows of text are for tests; None: `TEST_IMAGES`, `TEST_WINDOWS`.
    """
    if data == "digits":
        return _digits()
    return _clothes(tested or TEST_IMAGES) if data == "clothes" else _text(tested or TEST_WINDOWS)


def _digits() -> Samples:
    """The digits, every pixel standardised by its mean and spread in the training data."""
    digits = load_digits()
    middle, spread = digits.train_images.mean(axis=0), digits.train_images.std(axis=0) + 0.1
    train, test = (
        ((images - middle) / spread).astype(np.float32) for images in (digits.train_images, digits.test_images)
    )
    return Samples(train, digits.train_labels, test, digits.test_labels)


def _clothes(tested: int) -> Samples:
    folder = _found(CLOTHES, "dataset-fashion-mnist")
    train, test = (_idx(folder / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    labels, test_labels = (_idx(folder / f"{part}-labels-idx1-ubyte.gz") for part in ("train", "t10k"))
    scaled = [((images[:, None] / 255.0 - 0.286) / 0.353).astype(np.float32) for images in (train, test[:tested])]
    return Samples(scaled[0], labels.astype(np.int64), scaled[1], test_labels[:tested].astype(np.int64))


def _idx(path: Path) -> npt.NDArray[np.uint8]:
    """An array in the IDX format of MNIST: a magic number with the number of dimensions, these, and bytes."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\x00\x00\x08":
        raise InputError(f"{path} is not an IDX file of bytes. Unpack the package again.")
    shape = np.frombuffer(raw, ">u4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _text(tested: int) -> Samples:
    path = _found(TEXT, "jargon-text")
    codes = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8).astype(np.int64)
    known = np.where((codes >= _FIRST) & (codes <= _LAST), codes - _FIRST + 1, 0)
    windows = np.lib.stride_tricks.sliding_window_view(known, CONTEXT + 1)[::CONTEXT]
    test = np.linspace(0, len(windows) - 1, tested).astype(np.int64)
    train = np.delete(windows, test, axis=0)
    return Samples(train[:, :-1], train[:, 1:].copy(), windows[test, :-1].copy(), windows[test, 1:].copy())


def _found(path: Path, package: str) -> Path:
    folders = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
    for folder in (*folders, Path("/")):
        if (folder / path).exists():
            return folder / path
    raise InputError(
        f"this experiment needs Debian's package {package}: install it, or unpack it (apt-get download {package}; "
        f"dpkg -x {package}_*.deb DIR) and set {DATA_VARIABLE}=DIR."
    )
