"""Makes `init_process_group("tradewind")` work.

PyTorch calls `register` by itself when it is imported where Tradewind is installed (the entry point `torch.backends`),
so a program has to change one word. As this happens at every `import torch`, nothing else of ours loads before a group
is made.
"""

from __future__ import annotations

from typing import Any

BACKEND = "tradewind"


def register() -> None:
    """Register the backend; harmless to repeat.

    PyTorch is imported here and not above: whoever imports us first makes PyTorch look for `register` while we wait.
    """
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(made: Any, options: Any = None) -> Any:
    from tradewind.torch.backend import create_group

    return create_group(made, options)
