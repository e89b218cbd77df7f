"""Data connections to all peers: made when they are needed, and made again when they break.

The connections to one peer are a *bundle*: they share a queue and break together, since whoever sends does not know
which frames the other side got. When all threads of a broken bundle have ended, the engine is told, and there may be a
new one.
Of two peers the one with the lower number calls. A call carries when it was made, so that the other side can tell a
further connection of a bundle from a new bundle whose predecessor it believes to be alive.

In a strict run a broken bundle is trouble at once, and the end. In a tolerant one the peers try to connect again; when
they have, both say so, because frames may be lost and rounds have to make up for them. If that takes too long, the link
counts as lost, rounds go around it, and whoever calls goes on trying until the link is back or the peer is gone.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from tradewind.control.deadlines import Deadlines
from tradewind.engine.actions import Transmit
from tradewind.errors import RemoteFault
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.links import Host, Link
from tradewind.runtime.polled_link import PolledLink
from tradewind.runtime.polling import CAN_POLL, Poller
from tradewind.runtime.shaping import ShapedNetwork, ShapedSender
from tradewind.runtime.sockets import call, hang_up, shorten_queue
from tradewind.runtime.threads import start_thread
from tradewind.wire.handshake import Credentials
from tradewind.wire.messages import Address

FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 2.0
SHORT_LIFE_S = 1.0
"""A bundle that broke sooner was hardly one: the next call waits longer."""


class PeersHost(Host, Protocol):
    """What the connections need of their worker."""

    def drained(self, peer: int, outbox: queue.SimpleQueue[Transmit | None]) -> None:
        """A bundle is over; what is in its queue was never sent."""
        ...

    def trouble(self, peer: int, reason: str, back: bool = False) -> None:
        """Tell the controller about a connection."""
        ...


class Bundle:
    """The connections to a peer that were made together."""

    def __init__(self, made_s: float) -> None:
        self.outbox: queue.SimpleQueue[Transmit | None] = queue.SimpleQueue()
        self.links: list[Link | PolledLink] = []
        self.made_s, self.since_s = made_s, time.monotonic()
        """When its caller called, by the caller's clock; when it began here."""
        self.users = 0
        """Threads of its connections that have not ended."""
        self.broken = ""

    def put(self, action: Transmit) -> None:
        """A frame for whichever connection is idle."""
        self.outbox.put(action)
        for link in self.links:
            link.attend()


class Peers:
    """All of one worker's."""

    def __init__(
        self,
        host: PeersHost,
        credentials: Credentials,
        deadlines: Deadlines,
        connections: Callable[[str], int],
        slow_links: bool,
        shape: ShapedNetwork | None,
        neighbours: bool,
    ) -> None:
        self._neighbours = neighbours
        """Whether peers on this machine are called without a network."""
        self._host, self._credentials, self._deadlines = host, credentials, deadlines
        self._connections, self._slow_links, self._shape = connections, slow_links, shape
        self._poller = Poller()
        self._changed = threading.Condition()
        self._roster: dict[int, Address] = {}
        self._here = -1
        self._tolerant = self._closed = False
        self._bundles: dict[int, Bundle] = {}
        self._calling: set[int] = set()
        self._broken_s: dict[int, float] = {}
        """Peers that were connected and are not, since when."""
        self._reported: set[int] = set()
        """Those of them whose link was reported as lost."""

    def name(self, peer: int) -> str | None:
        """What a peer is called, if it is there."""
        address = self._roster.get(peer)
        return None if address is None else address.site

    # --- who is there ------------------------------------------------------------------------------------------

    def update(self, roster: dict[int, Address], here: int, tolerant: bool) -> None:
        """Who is there, and where; we are number `here`."""
        with self._changed:
            moved = [n for n, a in self._roster.items() if n in roster and roster[n] != a]
            self._roster, self._here, self._tolerant = roster, here, tolerant
            self._reported.clear()  # whoever sent this roster may not have heard of them
            self._changed.notify_all()
        for number in moved:
            self._break(number, "it was started anew")

    def forget(self, peer: int) -> None:
        """A peer is gone."""
        with self._changed:
            self._roster.pop(peer, None)
            self._broken_s.pop(peer, None)
            self._reported.discard(peer)
            self._changed.notify_all()
        self._break(peer, "it is gone")

    def close(self) -> None:
        """End all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            peers = list(self._bundles)
        for peer in peers:
            self._break(peer, "we are leaving")
        self._poller.close()

    @property
    def moved(self) -> int:
        """Changes whenever something got through anywhere."""
        with self._changed:
            return sum(link.moved for bundle in self._bundles.values() for link in bundle.links)

    def put(self, action: Transmit) -> None:
        """Give a frame to whichever connection is idle; the engine knows that one is, or was."""
        self._bundles[action.peer].put(action)

    def stalled(self, peer: int, reason: str) -> None:
        """Nothing comes from a peer although more is due: its connections are no good."""
        if self._tolerant:
            self._break(peer, reason)
        else:
            self._host.trouble(peer, reason)

    def report_lost(self) -> None:
        """Say which links have been broken for too long; to be called now and then."""
        limit_s = time.monotonic() - self._deadlines.reconnect_s
        with self._changed:
            late = [p for p, since_s in self._broken_s.items() if since_s <= limit_s and p not in self._reported]
            self._reported.update(late)
        for peer in late:
            self._host.trouble(peer, "its connection is broken and could not be made again")

    # --- making connections ------------------------------------------------------------------------------------

    def want(self, peer: int) -> None:
        """Have a connection to a peer; the one with the lower number calls."""
        with self._changed:
            if peer in self._bundles or peer in self._calling or self._here > peer or self._closed:
                return
            self._calling.add(peer)
        start_thread(self._keep_calling, peer, name=f"tradewind-dial-{peer}")

    def _keep_calling(self, peer: int) -> None:
        delay_s = FIRST_RETRY_S
        while True:
            with self._changed:
                address = self._roster.get(peer)
                self._changed.wait_for(lambda: self._closed or peer not in self._bundles, self._deadlines.patience_s)
                if self._closed or address is None or peer in self._bundles:
                    self._calling.discard(peer)
                    return
            try:
                self._call(peer, address)
                return
            except RemoteFault as error:
                if not self._tolerant:
                    self._host.trouble(peer, str(error))
                    return
                with self._changed:
                    self._broken_s.setdefault(peer, time.monotonic())
                    self._changed.wait_for(lambda: self._closed or peer not in self._roster, delay_s)
                delay_s = min(LONGEST_RETRY_S, 2 * delay_s)
                self.report_lost()

    def _call(self, peer: int, address: Address) -> None:
        limit_s = self._deadlines.reconnect_s / 4 if self._tolerant else self._deadlines.handshake_s
        made_s = time.time()
        if self._shape is not None and self._shape.is_cut(self._credentials.site, address.site):
            raise RemoteFault(f"the link to {address.site!r} is cut")
        where, purpose = HostPort(address.host, address.port), f"data {made_s!r}"
        socks = []
        try:
            for _ in range(self._connections(address.site)):
                deadline_s, answer_s = time.monotonic() + limit_s, self._deadlines.handshake_s
                near = address.site, self._neighbours
                sock, _ = call(where, self._credentials, purpose, deadline_s, *near, answer_s)
                socks.append(sock)
        except RemoteFault:
            for sock in socks:
                hang_up(sock)
            raise
        for sock in socks:
            self._add(peer, sock, made_s)
        with self._changed:
            self._calling.discard(peer)

    def called(self, sock: socket.socket, peer: int, purpose: str) -> None:
        """A peer connected to us."""
        try:
            made_s = float(purpose.removeprefix("data "))
        except ValueError:
            hang_up(sock)
            return
        with self._changed:
            known = self._bundles.get(peer)
        if known is not None and known.made_s < made_s:
            self._break(peer, "it connected anew")
            with self._changed:
                self._changed.wait_for(lambda: self._bundles.get(peer) is not known, self._deadlines.handshake_s)
        self._add(peer, sock, made_s)

    def _add(self, peer: int, sock: socket.socket, made_s: float) -> None:
        with self._changed:
            bundle = self._bundles.get(peer)
            address = self._roster.get(peer)
            stale = bundle is not None and (bundle.made_s != made_s or bool(bundle.broken))
            if self._closed or address is None or stale:
                hang_up(sock)
                return
            if bundle is None:
                bundle = self._bundles[peer] = Bundle(made_s)
            was_broken = self._broken_s.pop(peer, None) is not None
            self._reported.discard(peer)
            if self._slow_links:
                shorten_queue(sock)
            site, there = self._credentials.site, address.site
            link = self._link(peer, sock, bundle, there)
            bundle.users += link.users
            bundle.links.append(link)
        if self._shape is not None:
            self._shape.watch(site, there, link.close)
        if was_broken:
            self._host.trouble(peer, "its connection was made again", back=True)
        link.start()

    def _link(self, peer: int, sock: socket.socket, bundle: Bundle, there: str) -> Link | PolledLink:
        def broke(reason: str) -> None:
            self._break(peer, reason, bundle)

        def ended() -> None:
            self._ended(peer, bundle)

        if self._shape is None and self._slow_links and CAN_POLL and sock.family != socket.AF_UNIX:
            return PolledLink(self._host, peer, sock, bundle.outbox, broke, ended, self._poller)
        site = self._credentials.site
        shaped = None if self._shape is None else ShapedSender(self._shape, site, there, sock)
        return Link(self._host, peer, sock, bundle.outbox, broke, ended, shaped)

    # --- breaking ----------------------------------------------------------------------------------------------

    def _break(self, peer: int, reason: str, which: Bundle | None = None) -> None:
        """End a peer's connections; only the first reason counts."""
        with self._changed:
            bundle = self._bundles.get(peer)
            if bundle is None or bundle.broken or (which is not None and which is not bundle):
                return
            bundle.broken = reason or "it broke"
            links = list(bundle.links)
        for link in links:
            link.close()
            bundle.outbox.put(None)
        if not self._tolerant and not self._closed:
            self._host.trouble(peer, f"its connection to {self._credentials.site!r} broke ({reason})")

    def _ended(self, peer: int, bundle: Bundle) -> None:
        with self._changed:
            bundle.users -= 1
            if bundle.users or self._bundles.get(peer) is not bundle:
                return
        self._host.drained(peer, bundle.outbox)
        with self._changed:
            del self._bundles[peer]
            again = self._tolerant and not self._closed and peer in self._roster
            if again:
                self._broken_s.setdefault(peer, time.monotonic())
            self._changed.notify_all()
            hasty = time.monotonic() - bundle.since_s < SHORT_LIFE_S
        if again:
            if hasty:
                time.sleep(FIRST_RETRY_S)
            self.want(peer)
