"""Data connections to all peers: made when they are needed, and remade when they break.

The connections to one peer are a *bundle*: they share a queue and break together, since the sender does not know which
frames the other side received. When all threads of a broken bundle have ended, the node is notified, and a new bundle
may follow. Of two peers the one with the lower number calls. Each call carries the time of its bundle, so that the
other side can distinguish a further connection of a bundle from a new bundle, whose predecessor it may still consider
alive.

A broken bundle concerns only that link, in strict and tolerant runs: lost ranks are detected by the controller. The
peers reconnect and then both report it, because frames may be lost and rounds must repeat them. If reconnecting takes
longer than `reconnect_s`, the link is reported as lost and plans avoid it, and the calling peer keeps trying until it
succeeds or the peer has left the roster. A link that could not be connected at all, or that broke because the other
machine acknowledges nothing (`liveness`), is reported as lost at once: another attempt would add no information.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from tradewind.control.deadlines import Deadlines
from tradewind.errors import BadFrame, RemoteFault
from tradewind.node import events as ev
from tradewind.node.actions import Transmit
from tradewind.planning.host import MAX_CONNECTIONS
from tradewind.runtime.addresses import HostPort
from tradewind.runtime.connections import ConnectionCounts, Growth, Pacing
from tradewind.runtime.dialling import Dialling
from tradewind.runtime.links import Host, Link
from tradewind.runtime.polled_link import PolledLink
from tradewind.runtime.polling import CAN_POLL, Poller
from tradewind.runtime.shaping import ShapedNetwork, ShapedSender
from tradewind.runtime.sockets import call, hang_up, pace, shorten_queue
from tradewind.runtime.stats import PeerLinks, Traffic
from tradewind.runtime.threads import start_thread
from tradewind.wire.handshake import DATA_PURPOSE, Credentials
from tradewind.wire.messages import Address

log = logging.getLogger("tradewind.runtime")

FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 2.0
Connected = Callable[[str, socket.socket], None]
"""Called with the peer's name and the socket of every new data connection."""
MAX_LINKS = 2 * MAX_CONNECTIONS
"""The most connections of a bundle: both sides may add some at the same time."""
SHORT_LIFE_S = 1.0
"""After a bundle that broke sooner, the next call is delayed."""


def polls(slow_links: bool, shape: ShapedNetwork | None) -> bool:
    """Whether one thread serves all TCP connections of a rank; otherwise each has two."""
    return shape is None and slow_links and CAN_POLL


class PeersHost(Host, Protocol):
    """The driver that owns the connections, as far as they use it."""

    def drained(self, peer: int, outbox: queue.SimpleQueue[Transmit | None]) -> None:
        """Note that a bundle has ended; the frames in its queue were not sent."""
        ...

    def trouble(self, peer: int, reason: str, back: bool = False) -> None:
        """Report a lost link to the controller, or with `back` one that works again."""
        ...

    def linked(self, peer: int) -> None:
        """Report to the controller that a data connection to a peer was made."""
        ...


class Bundle:
    """The connections to a peer that were made together."""

    def __init__(self, made_s: float, name: str, known_bps: float | None) -> None:
        self.name = name
        """The name of the peer."""
        self.outbox: queue.SimpleQueue[Transmit | None] = queue.SimpleQueue()
        self.links: list[Link | PolledLink] = []
        self.made_s, self.since_s = made_s, time.monotonic()
        """When it was made, by the wall clock of its caller; when it began here, by the monotonic clock."""
        self.users = 0
        """The number of running threads of its connections."""
        self.broken = ""
        self.growth, self.pacing = Growth(), Pacing(known_bps)
        self.unanswered = False
        """Whether it is broken because the other machine acknowledged nothing."""

    def put(self, action: Transmit) -> None:
        """Queue a frame for the next idle connection."""
        self.outbox.put(action)
        for link in self.links:
            link.attend()


@dataclass(slots=True)
class Outage:
    """A peer whose connections are broken or could not be made."""

    reason: str
    report_s: float
    """When the link is reported as lost, unless it works again by then."""
    reported: bool = False


class Peers:
    """The data connections of one rank to all its peers."""

    def __init__(
        self,
        host: PeersHost,
        credentials: Credentials,
        deadlines: Deadlines,
        connections: ConnectionCounts,
        slow_links: bool,
        shape: ShapedNetwork | None,
        neighbours: bool,
        connected: Connected | None = None,
    ) -> None:
        self._connected = connected
        self._neighbours = neighbours
        """Whether peers on this machine are connected through Unix sockets."""
        self._host, self._credentials, self._deadlines = host, credentials, deadlines
        self._connections, self._slow_links, self._shape = connections, slow_links, shape
        self._poller = Poller()
        self._changed = threading.Condition()
        self._roster: dict[int, Address] = {}
        self._here = -1
        self._closed = False
        self._bundles: dict[int, Bundle] = {}
        self._calling: set[int] = set()
        self._outages: dict[int, Outage] = {}
        self._past: dict[str, Traffic] = {}
        """The traffic of closed connections, by the peer's name."""
        self._broken: Counter[str] = Counter()

    def stats(self) -> dict[str, PeerLinks]:
        """The state and traffic of the connections, by the peer's name."""
        with self._changed:
            there = {address.site: n for n, address in self._roster.items() if n != self._here}
            named = {**dict.fromkeys(self._past), **{bundle.name: bundle for bundle in self._bundles.values()}}
            return {name: self._stats_of(name, named.get(name)) for name in sorted({*there, *named})}

    def _stats_of(self, name: str, bundle: Bundle | None) -> PeerLinks:
        moved = Traffic()
        moved.add(self._past.get(name, Traffic()))
        links = [] if bundle is None else bundle.links
        for link in links:
            moved.add(link.traffic)
            moved.retransmits += link.buffer_use.retransmits()
        is_up = bundle is not None and not bundle.broken
        polled = any(isinstance(link, PolledLink) for link in links)
        return PeerLinks(
            len(links) if is_up else 0, links[0].transport if is_up and links else "", polled, self._broken[name], moved
        )

    def received(self) -> dict[int, int]:
        """A value for each connected peer that changes whenever payload of it arrives, or is arriving now."""
        with self._changed:
            bundles = {peer: list(bundle.links) for peer, bundle in self._bundles.items()}
        now = time.monotonic_ns()
        found = {peer: sum(link.traffic.received_bytes for link in links) for peer, links in bundles.items()}
        arriving = [peer for peer, links in bundles.items() if any(link.is_receiving for link in links)]
        return {**found, **dict.fromkeys(arriving, now)}

    def name(self, peer: int) -> str | None:
        """The name of a peer; None if it is not in the roster."""
        address = self._roster.get(peer)
        return None if address is None else address.site

    # --- roster ------------------------------------------------------------------------------------------------

    def update(self, roster: dict[int, Address], here: int) -> None:
        """Set the roster with the peers' addresses; `here` is the number of this rank."""
        with self._changed:
            moved = [n for n, a in self._roster.items() if n in roster and roster[n] != a]
            back = [n for n, a in roster.items() if n not in self._roster and a.site in self._past and n != here]
            self._roster, self._here = roster, here
            for outage in self._outages.values():
                outage.reported = False  # the controller that sent this roster may not know of it
            self._changed.notify_all()
        for number in moved:
            self.drop(number, "it was restarted")
        for number in back:  # a rank that has come back may report its links as lost until they are made again
            self.want(number)

    def forget(self, peer: int) -> None:
        """Remove a peer that has left the run or is lost."""
        with self._changed:
            self._roster.pop(peer, None)
            self._outages.pop(peer, None)
            self._changed.notify_all()
        self.drop(peer, "it left the run or was lost")

    def close(self) -> None:
        """End all connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            peers = list(self._bundles)
        for peer in peers:
            self.drop(peer, "this rank leaves the run")
        self._poller.close()

    def put(self, action: Transmit) -> None:
        """Queue a frame for the next idle connection to its peer."""
        self._bundles[action.peer].put(action)

    # --- liveness ------------------------------------------------------------------------------------------------

    def watch(self, awaited: Callable[[], Collection[int]]) -> None:
        """Send keepalives, close unanswered connections, add some, report lost links; called every `keepalive_s`.

        `awaited` returns the peers from which chunks are due. If one of them sends nothing for `silence_s`, not even
        keepalives, its connections are closed although its machine answers: its process may be stopped or stuck.
        """
        now_s, limits = time.monotonic(), self._deadlines
        with self._changed:
            up = [(peer, bundle, list(bundle.links)) for peer, bundle in self._bundles.items() if not bundle.broken]
        quiet = {}
        for peer, bundle, links in up:
            found = [link.liveness.silence(now_s) for link in links]
            unanswered_s = max((silence.unanswered_s for silence in found), default=0.0)
            quiet_s = min((silence.quiet_s for silence in found), default=0.0)
            if unanswered_s > limits.link_silence_s:
                bundle.unanswered = True
                self.drop(peer, f"its machine has acknowledged nothing for {unanswered_s:.3g} s", bundle)
                continue
            if quiet_s > limits.silence_s:
                quiet[peer] = quiet_s
            uses = [use for link in links if (use := link.buffer_use.read()) is not None]
            if self._connections.may_grow and len(links) < MAX_CONNECTIONS and bundle.growth.is_due(uses):
                start_thread(self._grow, peer, bundle, name=f"tradewind-grow-{peer}")
            if bundle.pacing.ends(uses):
                for link in links:
                    link.unpace()
            self._host.tell(ev.KeepAlive(peer))
        for peer in sorted(quiet.keys() & set(awaited())) if quiet else ():
            self.drop(peer, f"it has sent nothing for {quiet[peer]:.3g} s although more is due")
        self._report_lost()

    def _report_lost(self) -> None:
        """Report links whose outage has lasted too long."""
        now_s = time.monotonic()
        with self._changed:
            late = {p: out for p, out in self._outages.items() if out.report_s <= now_s and not out.reported}
            for outage in late.values():
                outage.reported = True
        for peer, outage in late.items():
            self._host.trouble(peer, outage.reason)

    # --- making connections ------------------------------------------------------------------------------------

    def want(self, peer: int) -> None:
        """Connect to a peer, unless it has the lower number: then it calls."""
        with self._changed:
            if peer in self._bundles or peer in self._calling or self._here > peer or self._closed:
                return
            self._calling.add(peer)
        start_thread(self._keep_calling, peer, name=f"tradewind-dial-{peer}")

    def _keep_calling(self, peer: int) -> None:
        delay_s = FIRST_RETRY_S
        dialling: Dialling | None = None
        while True:
            with self._changed:
                address = self._roster.get(peer)
                self._changed.wait_for(lambda: self._closed or peer not in self._bundles, self._deadlines.patience_s)
                if self._closed or address is None or peer in self._bundles:
                    self._calling.discard(peer)
                    return
            dialling = dialling or Dialling.to_rank(self._credentials.site, address.site)
            try:
                self._call(peer, address, dialling)
                with self._changed:
                    if peer in self._bundles:  # its end asks for the next call
                        self._calling.discard(peer)
                        return
                    report_s = time.monotonic() + self._deadlines.reconnect_s
                    self._outages.setdefault(peer, Outage("its connection ended at once", report_s))
            except RemoteFault as error:
                with self._changed:
                    outage = self._outages.setdefault(peer, Outage("", time.monotonic()))
                    outage.reason = str(error)
            self._report_lost()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or peer not in self._roster, delay_s)
            delay_s = min(LONGEST_RETRY_S, 2 * delay_s)

    def _call(self, peer: int, address: Address, dialling: Dialling) -> None:
        made_s = time.time()
        if self._shape is not None and self._shape.is_cut(self._credentials.site, address.site):
            raise RemoteFault(f"the link to {address.site!r} is cut")
        count = self._first_connections(address)
        socks: list[socket.socket] = []
        try:
            while len(socks) < count:
                socks += [self._dial(address, made_s, dialling)]
        except RemoteFault:
            for sock in socks:
                hang_up(sock)
            raise
        for sock in socks:
            self._add(peer, sock, made_s)
        self._host.linked(peer)

    def _dial(self, address: Address, made_s: float, dialling: Dialling) -> socket.socket:
        """Make one connection of the bundle with time `made_s`."""
        where, deadline_s = HostPort(address.host, address.port), time.monotonic() + self._deadlines.reconnect_s / 4
        local, answer_s = address.site if self._neighbours else None, self._deadlines.handshake_s
        purpose = f"{DATA_PURPOSE}{made_s!r}"
        return call(where, self._credentials, purpose, deadline_s, dialling, address.site, local, answer_s)[0]

    def _first_connections(self, address: Address) -> int:
        if self._shape is not None:
            return self._connections.asked or 1
        with self._changed:
            hosts = [known.host for known in self._roster.values()]
            own = self._roster.get(self._here)
        ranks_here = max(1, hosts.count(own.host)) if own is not None else 1
        is_near = self._neighbours and own is not None and own.host == address.host
        return self._connections.at_start(address.site, ranks_here, len(hosts) - 1, is_near)

    def _grow(self, peer: int, bundle: Bundle) -> None:
        """Add a connection to a bundle whose send buffers limit it; the other side does the same for its own."""
        with self._changed:
            address = self._roster.get(peer)
        if address is None:
            return
        try:
            sock = self._dial(address, bundle.made_s, Dialling.to_rank(self._credentials.site, address.site))
        except RemoteFault as error:
            log.info("no further connection to %s: %s", bundle.name, error)
            return
        self._add(peer, sock, bundle.made_s)
        log.info("connection %d to %s: send buffers limited the others", len(bundle.links), bundle.name)

    def called(self, sock: socket.socket, peer: int, purpose: str) -> None:
        """Add a connection that a peer made to this rank."""
        try:
            made_s = float(purpose.removeprefix(DATA_PURPOSE))
        except ValueError:
            hang_up(sock)
            return
        with self._changed:
            known = self._bundles.get(peer)
        if known is not None and known.made_s < made_s:
            self.drop(peer, "it reconnected")
            with self._changed:
                self._changed.wait_for(lambda: self._bundles.get(peer) is not known, self._deadlines.handshake_s)
        self._add(peer, sock, made_s)

    def _add(self, peer: int, sock: socket.socket, made_s: float) -> None:
        with self._changed:
            bundle = self._bundles.get(peer)
            address = self._roster.get(peer)
            stale = bundle is not None and (bundle.made_s != made_s or bool(bundle.broken))
            too_many = bundle is not None and len(bundle.links) >= MAX_LINKS
            if self._closed or address is None or stale or too_many:
                hang_up(sock)
                return
            if bundle is None:
                slow_bps = self._connections.known_bps(address.site) if self._slow_links else None
                bundle = self._bundles[peer] = Bundle(made_s, address.site, slow_bps)
            was_broken = self._outages.pop(peer, None) is not None
            if self._slow_links:
                shorten_queue(sock, self._connections.queue_bytes(address.site))
                pace(sock, bundle.pacing.bytes_per_s)
            site, there = self._credentials.site, address.site
            link = self._link(peer, sock, bundle, there)
            bundle.users += link.users
            bundle.links.append(link)
        if self._connected is not None:
            self._connected(there, sock)
        if self._shape is not None:
            self._shape.watch(site, there, link.close)
        if was_broken:
            self._host.trouble(peer, "it reconnected", back=True)
        link.start()

    def _link(self, peer: int, sock: socket.socket, bundle: Bundle, there: str) -> Link | PolledLink:
        def broke(error: Exception) -> None:
            if isinstance(error, BadFrame):
                log.warning("%s closes its connections to %s: %s", self._credentials.site, there, error)
            self.drop(peer, (error.strerror if isinstance(error, OSError) else "") or str(error), bundle)

        def ended() -> None:
            self._ended(peer, bundle)

        if polls(self._slow_links, self._shape) and sock.family != socket.AF_UNIX:
            return PolledLink(self._host, peer, sock, bundle.outbox, broke, ended, self._poller)
        site = self._credentials.site
        shaped = None if self._shape is None else ShapedSender(self._shape, site, there, sock)
        return Link(self._host, peer, sock, bundle.outbox, broke, ended, shaped)

    # --- breaking ----------------------------------------------------------------------------------------------

    def drop(self, peer: int, reason: str, which: Bundle | None = None) -> None:
        """Close a peer's connections, of bundle `which` only if given; new ones are made. The first reason counts."""
        with self._changed:
            bundle = self._bundles.get(peer)
            if bundle is None or bundle.broken or (which is not None and which is not bundle):
                return
            bundle.broken = reason or "it broke"
            links = list(bundle.links)
        for link in links:
            link.close()
            bundle.outbox.put(None)

    def _ended(self, peer: int, bundle: Bundle) -> None:
        with self._changed:
            bundle.users -= 1
            if bundle.users or self._bundles.get(peer) is not bundle:
                return
        self._host.drained(peer, bundle.outbox)
        with self._changed:
            del self._bundles[peer]
            self._broken[bundle.name] += 1
            for link in bundle.links:
                self._past.setdefault(bundle.name, Traffic()).add(link.traffic)
            bundle.links = []  # each refers to the bundle: their buffers would wait for the garbage collector
            again = not self._closed and peer in self._roster
            now_s = time.monotonic()
            if again:
                report_s = now_s if bundle.unanswered else now_s + self._deadlines.reconnect_s
                self._outages.setdefault(peer, Outage(bundle.broken, report_s))
            self._changed.notify_all()
            was_short = now_s - bundle.since_s < SHORT_LIFE_S
        if again:
            self._report_lost()
            if was_short:
                time.sleep(FIRST_RETRY_S)
            self.want(peer)
