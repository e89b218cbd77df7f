"""Hugging Face Accelerate over Tradewind, also on the CPU.

    import tradewind.torch.accelerate
    from accelerate import Accelerator, InitProcessGroupKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="tradewind")])

On GPUs Accelerate takes any backend that it is given, and this module is not needed. On the CPU it replaces every name
by Gloo or MPI; importing this module makes it keep "tradewind".
"""

from __future__ import annotations

from typing import Any

try:
    from accelerate.state import PartialState
except ImportError as error:
    raise ImportError(
        "tradewind.torch.accelerate needs Accelerate, which is not installed: pip install accelerate"
    ) from error

from tradewind.torch.registration import BACKEND

_choose: Any = PartialState._prepare_backend


def _keep_ours(
    self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
) -> tuple[str | None, Any]:
    """Accelerate's choice of a backend, unless it was asked for ours and the run is distributed."""
    chosen, kind = _choose(self, cpu, sagemaker_dp, None if backend == BACKEND else backend)
    return (BACKEND if backend == BACKEND and chosen is not None else chosen), kind


PartialState._prepare_backend = _keep_ours
