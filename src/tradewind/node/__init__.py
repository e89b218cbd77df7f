"""A worker's data plane without I/O: any plan, carried out chunk by chunk, for any number of rounds at once.

`layout` turns a plan into one site's part in it; `engine` is the state machine, told what happened (`events`) and
answering with the payload work to do (`actions`); `arithmetic` is that work, as far as it is not I/O. The drivers are
`runtime` on sockets, and `sim` on a virtual network.
"""

from __future__ import annotations

from tradewind.arithmetic import Arithmetic
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Layout, lay_out

__all__ = ["Arithmetic", "Engine", "Layout", "lay_out"]
