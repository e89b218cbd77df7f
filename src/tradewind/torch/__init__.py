"""PyTorch integration: the backend of `init_process_group("tradewind")`, and the `Synchronizer`.

This is the only package that imports torch. The names below load on first use, because `import torch` itself imports
this module (entry point `torch.backends`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tradewind.torch.registration import register

if TYPE_CHECKING:
    from tradewind.runtime.options import RunOptions as Options
    from tradewind.torch.backend import configure
    from tradewind.torch.compression import ErrorFeedback, compression_hook, error_feedback
    from tradewind.torch.elastic import Elastic
    from tradewind.torch.ensemble import Ensemble
    from tradewind.torch.outer import Outer
    from tradewind.torch.sampler import ElasticSampler
    from tradewind.torch.synchronizer import Synchronizer

_HOMES = {
    "Elastic": "tradewind.torch.elastic",
    "ElasticSampler": "tradewind.torch.sampler",
    "Ensemble": "tradewind.torch.ensemble",
    "ErrorFeedback": "tradewind.torch.compression",
    "Options": "tradewind.runtime.options:RunOptions",
    "Outer": "tradewind.torch.outer",
    "Synchronizer": "tradewind.torch.synchronizer",
    "compression_hook": "tradewind.torch.compression",
    "configure": "tradewind.torch.backend",
    "error_feedback": "tradewind.torch.compression",
}

__all__ = [
    "Elastic",
    "ElasticSampler",
    "Ensemble",
    "ErrorFeedback",
    "Options",
    "Outer",
    "Synchronizer",
    "compression_hook",
    "configure",
    "error_feedback",
]

register()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tradewind.torch' has no attribute {name!r}")
    module, _, other_name = _HOMES[name].partition(":")
    return getattr(import_module(module), other_name or name)


def __dir__() -> list[str]:
    return sorted(__all__)
