"""Registration of the backend, so that `init_process_group("tradewind")` works.

Where Tradewind is installed, `import torch` calls `register` (entry point `torch.backends`), so a program only has to
change the backend's name. As this happens at every `import torch`, the rest of Tradewind loads only when a group is
created.
"""

from __future__ import annotations

from typing import Any

BACKEND = "tradewind"


def register() -> None:
    """Register the backend with PyTorch; repeated calls have no effect.

    PyTorch is imported inside the function: if a program imports this module first, `import torch` at the top would
    look for `register` before it is defined.
    """
    import torch.distributed as dist

    if dist.is_available() and BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(made: Any, options: Any = None) -> Any:
    from tradewind.torch.backend import create_group

    return create_group(made, options)
