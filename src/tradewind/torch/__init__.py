"""PyTorch on Tradewind: `import tradewind.torch`, then `init_process_group("tradewind")`.

The only folder that imports torch. Importing it registers the backend.
"""

from __future__ import annotations

from tradewind.runtime.options import Options
from tradewind.torch.backend import configure, register

__all__ = ["Options", "configure"]

register()
