"""A rank's side of a run without I/O: the control protocol and a data plane.

`node` exchanges messages with the controller and directs the data plane; `chunk_plane` executes rounds chunk by chunk
with the `engine`, which takes `events` and returns `actions`; `measuring` measures links from arriving frames. The
drivers are `runtime` on sockets, and `sim` on a virtual network.
"""

from __future__ import annotations

from tradewind.arithmetic import Arithmetic
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Layout, lay_out

__all__ = ["Arithmetic", "Engine", "Layout", "lay_out"]
