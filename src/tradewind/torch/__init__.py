"""PyTorch on Tradewind: `import tradewind.torch`, then `init_process_group("tradewind")`, or a `Synchronizer`.

The only folder that imports torch. Importing it registers the backend.
"""

from __future__ import annotations

from tradewind.runtime.options import Options
from tradewind.torch.backend import configure, register
from tradewind.torch.ensemble import Ensemble
from tradewind.torch.outer import Outer
from tradewind.torch.synchronizer import Synchronizer

__all__ = ["Ensemble", "Options", "Outer", "Synchronizer", "configure"]

register()
