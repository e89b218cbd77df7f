"""A rank's side of a run without I/O: the control protocol and a data plane.

`node` talks to the controller and to the data plane; `chunk_plane` carries rounds out chunk by chunk with the `engine`,
told what happened (`events`) and answering with the work to do (`actions`); `measuring` tells what links carry. The
drivers are `runtime` on sockets, and `sim` on a virtual network.
"""

from __future__ import annotations

from tradewind.arithmetic import Arithmetic
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Layout, lay_out

__all__ = ["Arithmetic", "Engine", "Layout", "lay_out"]
