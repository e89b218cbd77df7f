"""The chunk data plane: the engine, with the arrays that it works on.

It derives this site's part of a plan (`engine.layout`), holds the arrays of operations and rounds, and collects the
engine's actions on payloads. A driver passes events to `handle` and carries out the actions: payloads are accessed
there, outside the lock that guards this object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tradewind.arithmetic import Array, arithmetic_of, storage_of
from tradewind.node import actions as do
from tradewind.node import events as ev
from tradewind.node.coded_payload import coded_payload
from tradewind.node.engine.engine import Engine
from tradewind.node.engine.layout import Form, Layout, lay_out, peers_in
from tradewind.node.node import Arrays
from tradewind.node.payload import Bytes, EarlyPayloads, Exchange, RoundPayload
from tradewind.node.served import INIT, PUSH, ServedArray
from tradewind.node.waits import RoundWait
from tradewind.planning.plan import Plan
from tradewind.wire import messages as m
from tradewind.wire.frames import FrameKind


@dataclass(frozen=True, slots=True)
class Digest:
    """Compute the digest of a round's result (`RoundPayload.digest`), and pass it to `ChunkPlane.digested`."""

    complete: do.RoundComplete
    payload: RoundPayload


Action = do.Receive | do.Combine | do.Transmit | do.Release | do.PeerFaulty | Digest | do.Connect


LayoutKey = tuple[int, int, int, str, tuple[int, ...]]
"""Version, items, bytes of an item, codec, and the items of each rank's part."""


def _layout_key(start: m.Start) -> LayoutKey:
    asked = start.operation
    return start.version, asked.items, asked.item_bytes, asked.codec, asked.sizes


class Layouts:
    """A site's layouts of the plans that it received, computed once for each version and array size."""

    def __init__(self) -> None:
        self._layouts: dict[LayoutKey, Layout] = {}

    @property
    def kept(self) -> tuple[LayoutKey, ...]:
        """Versions and sizes whose layout is worked out."""
        return tuple(sorted(self._layouts))

    def told(self, version: int, plan: Plan, forget: tuple[int, ...], site: str, numbers: Mapping[str, int]) -> None:
        """Add a plan and drop the versions in `forget`; lay the plan out for the sizes that were used with those."""
        sizes = sorted({key[1:] for key in self._layouts if key[0] in forget and not key[4]})
        self._layouts = {key: layout for key, layout in self._layouts.items() if key[0] not in forget}
        if numbers.keys() >= set(plan.sites) and not plan.collective.is_parted:
            for items, item_bytes, codec, parts in sizes:
                made = lay_out(plan, numbers, site, items, item_bytes, form=Form(codec))
                self._layouts[version, items, item_bytes, codec, parts] = made

    def renumbered(self) -> None:
        """Drop all layouts, because sites may have other numbers now."""
        self._layouts.clear()

    def layout(self, plan: Plan, start: m.Start, site: str, numbers: Mapping[str, int]) -> Layout:
        """Return a site's part in a round."""
        asked, key = start.operation, _layout_key(start)
        known = None if start.chunk_items else self._layouts.get(key)  # a given cut is decided for this round alone
        if known is not None:
            return known
        made = lay_out(
            plan,
            numbers,
            site,
            asked.items,
            asked.item_bytes,
            start.chunk_items,
            scattered=start.scattered is not None,
            form=Form(asked.codec, asked.sizes),
        )
        if not start.chunk_items:
            self._layouts[key] = made
        return made


class ChunkPlane:
    """The data plane of one site: executes rounds as chunks on connections."""

    def __init__(self, site: str, run: int) -> None:
        """`run`: the number of the run in frames."""
        self._site, self._run = site, run
        self.engine: Engine | None = None
        """The engine; None before the first roster, which contains this site's number."""
        self._numbers: Mapping[str, int] = {}
        self._layouts = Layouts()
        self._arrays: dict[int, Arrays] = {}
        self._asked: dict[int, m.Operation] = {}
        self.payloads: dict[int, RoundPayload] = {}
        """Payloads of the open rounds."""
        self._early = EarlyPayloads()
        self._served: dict[str, ServedArray] = {}
        self._exchanged: dict[int, tuple[str, str]] = {}
        """The operations that are exchanges with a server, each with its kind and key."""
        self._actions: list[Action] = []
        self._reports: list[tuple[do.RoundComplete, int | None] | do.RoundHalted] = []

    # --- operations --------------------------------------------------------------------------------------------

    def give(self, operation: int, arrays: Arrays | None, asked: m.Operation) -> None:
        """Set the arrays of an operation."""
        assert arrays is not None
        self._arrays[operation] = arrays
        self._asked[operation] = asked
        if asked.op in (INIT, PUSH):
            self._exchanged[operation] = asked.op, asked.root

    def served(self, key: str) -> ServedArray:
        """Return the array that ranks exchange with a server under this key."""
        if key not in self._served:
            self._served[key] = ServedArray(key)
        return self._served[key]

    def _exchange(self, start: m.Start, plan: Plan) -> Exchange | None:
        """Return what a server does with the chunks of a rank; None if the round is no exchange."""
        op, operation = start.operation.op, start.operation
        if op not in (INIT, PUSH):
            return None
        served, member = self.served(operation.root), plan.members[0]
        served.serve(operation.items, storage_of(operation.dtype))
        step = start.iterations[0]
        return lambda span, chunk: served.exchange(op, member, step, start.round, span, chunk)

    def end(self, ended: do.Succeeded | do.Failed) -> None:
        """Complete the result array of an operation that has ended, and release its arrays. Drivers call this."""
        if isinstance(ended, do.Succeeded) and ended.released:
            return  # the caller has its arrays back, and `forget` drops the copy
        own, result, *_ = self._arrays.pop(ended.operation)
        asked = self._asked.pop(ended.operation)
        self._early.end(ended.operation)
        op, key = self._exchanged.pop(ended.operation, ("", ""))
        if isinstance(ended, do.Failed):
            return
        if key:
            served, flat = self.served(key), result.reshape(-1)
            if ended.outcome.alone:
                served.alone(op, own.reshape(-1), flat)
            else:
                served.pulled = flat.copy()
            return
        if ended.array is not None:
            whole = np.frombuffer(ended.array, np.uint8)
            result.reshape(-1).view(np.uint8)[:] = self._own_part(
                asked, whole, ended.outcome.contributors, result.nbytes
            )
        elif ended.outcome.alone:
            result[...] = own

    def _own_part(self, asked: m.Operation, whole: Array, members: tuple[str, ...], nbytes: int) -> Array:
        """Return what this site gets of the result of an inline round, which is the same for all members."""
        if len(whole) == nbytes or not nbytes:
            return whole[:nbytes]
        place = sorted(members, key=self._numbers.__getitem__).index(self._site)
        starts = [first * asked.item_bytes for first in asked.part_starts(len(members))]
        if asked.kind == "all-to-all":
            return whole.reshape(len(members), -1)[:, starts[place] : starts[place + 1]].reshape(-1)
        return whole[starts[place] : starts[place + 1]]

    # --- rounds, for the protocol ------------------------------------------------------------------------------

    def joined(self, roster: m.Roster, here: int) -> None:
        """Take a new roster, with this rank's number in it."""
        self._numbers = {address.site: address.number for address in roster.workers}
        self._layouts.renumbered()
        if self.engine is None:
            self.engine = Engine(self._run, here, roster.discipline)
            self.forget_below(roster.floor)
        self.engine.site = here  # another one, if two controllers that did not know of each other gave its number twice
        self.engine.present = self._numbers.values()

    def prepare(self, version: int, plan: Plan, forget: tuple[int, ...]) -> None:
        """Prepare for rounds by this plan: connect to its peers, and lay it out for the sizes in use."""
        self._layouts.told(version, plan, forget, self._site, self._numbers)
        self._connect(self._numbers[peer] for peer in peers_in(plan, self._site) if peer in self._numbers)

    def open(self, start: m.Start, plan: Plan, operation: int | None, scattered: ev.ScatteredRound | None) -> None:
        """Start a round, or start it again by another version."""
        self._open(start, plan, operation, scattered)

    def open_ahead(self, start: m.Start, plan: Plan, operation: int) -> None:
        """Send first chunks for a round that has not started."""
        self._open(start, plan, operation, None, ahead=True)

    def _open(
        self,
        start: m.Start,
        plan: Plan,
        operation: int | None,
        scattered: ev.ScatteredRound | None,
        ahead: bool = False,
    ) -> None:
        weights = dict(zip(plan.members, m.value_of_each(start.weights, len(plan.members)), strict=True))
        arithmetic = arithmetic_of(start.operation.op, start.operation.dtype, weights, self._site)
        layout = self._layouts.layout(plan, start, self._site, self._numbers)
        own, result, residual, copy = (None, None, None, None) if operation is None else self._arrays[operation]
        if start.released is not None and result is own and result is not None and start.operation.root != self._site:
            result = result.copy()  # what arrives may be damaged or incomplete, and others may need the copy
        by_number = None
        if scattered is not None and len(set(weights.values())) > 1:
            by_number = {self._numbers[name]: weight for name, weight in weights.items()}
        exchange = self._exchange(start, plan) if operation is None else None
        if layout.codec is None:
            payload = RoundPayload(layout, arithmetic, own, result, start.version, by_number, exchange)
        else:
            payload = coded_payload(layout, arithmetic, own, result, start.version, start.round, residual)
            payload.copy = copy
        self.payloads[start.round] = payload
        payload.digests_whole, payload.copies, payload.releases = start.whole_digest, ahead, start.releases
        self._connect(layout.peers)
        done = start.done, scattered, start.turn, by_number is not None, ahead
        self._tell(ev.OpenRound(start.round, start.version, layout, arithmetic.gathers, *done))

    def halt(self, number: int) -> None:
        """Halt a round."""
        self._tell(ev.HaltRound(number))

    def close(self, number: int) -> None:
        """Close a round that has ended."""
        if self.engine is not None:
            self._tell(ev.CloseRound(number))
        self.payloads.pop(number, None)

    def forget_below(self, number: int) -> None:
        """Forget rounds below this one: none is running at any site."""
        self._tell(ev.ForgetBelow(number))

    def keep(self, operation: int, number: int) -> None:
        """Use a copy of the result of a complete round as the arrays of its operation."""
        kept = self.payloads[number].copy_of_result
        assert kept is not None, f"round {number} releases no result"
        self._arrays[operation] = Arrays(kept, kept)

    def forget(self, operation: int) -> None:
        """Drop the copy of an operation's result."""
        del self._arrays[operation]
        del self._asked[operation]

    def scatter(self, event: ev.BeginScatter, operation: int) -> None:
        """Start sending an array before its round is known."""
        if operation in self._arrays:
            self._early.begin(event, self._arrays[operation].own, operation)
            self._tell(event)

    def end_scatter(self, part: int) -> None:
        """Stop sending a part of a step before its round is known."""
        self._tell(ev.EndScatter(part))

    def peer_gone(self, peer: int) -> None:
        """Forget a lost peer."""
        self._numbers = {site: number for site, number in self._numbers.items() if number != peer}
        self._layouts.renumbered()
        assert self.engine is not None
        self.engine.present = self._numbers.values()
        self._tell(ev.PeerGone(peer))

    def steer(self, change: ev.Explore | ev.AuxiliaryChanged) -> None:
        """Probe a link, or change the auxiliary paths."""
        self._tell(change)

    def take_reports(self) -> list[tuple[do.RoundComplete, int | None] | do.RoundHalted]:
        """Return reports about rounds since the last call."""
        if not self._reports:
            return []
        taken, self._reports = self._reports, []
        return taken

    def waits(self) -> list[RoundWait]:
        """Return the open rounds that are not complete here, and what they wait for."""
        return [] if self.engine is None else self.engine.waits()

    # --- chunks, for drivers -----------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Handle an event on a connection. Raises `BadFrame` if a peer is at fault."""
        self._tell(event)

    @property
    def has_reports(self) -> bool:
        """Whether `take_reports` will return a report."""
        return bool(self._reports)

    def digested(self, work: Digest, digest: int | None) -> None:
        """Take the digest of a result that the driver has computed."""
        self._reports.append((work.complete, digest))

    def take_actions(self) -> list[Action]:
        """Return the actions on payloads and connections since the last call, in order."""
        taken, self._actions = self._actions, []
        return taken

    def outgoing(self, action: do.Transmit) -> memoryview | None:
        """Return the payload of a chunk of an array; None if its round has ended. Kept buffers belong to the driver."""
        if action.header.kind is FrameKind.SCATTER:
            return self._early.outgoing(action.header)
        payload = self.payloads.get(action.header.round)
        if payload is None or payload.version != action.header.plan_version:  # it waited while its round started again
            return None
        return payload.outgoing(action)

    def kept(self, action: do.Transmit, buffer: Bytes) -> memoryview:
        """Return what is sent of a kept buffer: a relayed chunk as it came, else the chunk that this site has made."""
        payload = self.payloads.get(action.header.round)
        whole = memoryview(buffer)
        return whole if payload is None or action.header.hop > 1 else memoryview(payload.used(whole))

    def _connect(self, peers: Iterable[int]) -> None:
        self._actions += [do.Connect(peer) for peer in peers]

    def _tell(self, event: ev.Event) -> None:
        assert self.engine is not None, f"{event} came before the roster"
        for action in self.engine.handle(event):
            if isinstance(action, do.RoundHalted):
                self._reports.append(action)
            elif not isinstance(action, do.RoundComplete):
                self._actions.append(action)
            else:
                payload = self.payloads.get(action.round)
                if payload is None or payload.result is None:
                    self._reports.append((action, None))
                else:
                    self._actions.append(Digest(action, payload))
