"""`--codec` of `plan` and `compare`: plans for encoded arrays, and how much faster they are than for float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tradewind.network import Network
    from tradewind.planning.host import HostCost
    from tradewind.planning.plan import Plan

ITEM_BYTES = 4
"""Size of a float32."""


def encoded_bytes(nbytes: int, codec: str, members: int) -> int:
    """The size of the sum of float32 tensors of so many members as it is sent.

    Raises `BadOption` for `auto`, which depends on the plan.
    """
    from tradewind.errors import BadOption
    from tradewind.wire.codecs import AUTO, check_codec, wire_bytes

    if check_codec(codec) == AUTO:
        raise BadOption("--codec auto is decided for one plan. Give a codec such as int8, or use `tradewind plan`.")
    return max(1, wire_bytes(codec, nbytes // ITEM_BYTES, ITEM_BYTES, members))


def encoded_plan(
    plain: Plan, network: Network, codec: str, planner: str, options: Mapping[str, object]
) -> tuple[Plan, HostCost, str]:
    """The plan for the encoded tensor, what its hosts cost, and a sentence that compares it with the plain one."""
    from tradewind.comparison import timed_plan
    from tradewind.control.plans.coding import choose_codec, coded_host
    from tradewind.planning import host_of, predict
    from tradewind.planning.bound import bound, least_bytes
    from tradewind.planning.plan import Coded
    from tradewind.units import format_duration, format_size
    from tradewind.wire.codecs import AUTO, NONE, check_codec, sum_sizes

    def made(nbytes: int, **given: Any) -> Plan:
        return timed_plan(planner, network, nbytes, plain.members, options=options, **given)

    host = host_of(planner, options)
    before = predict(plain, network, host=host).seconds
    picked = codec
    if check_codec(codec) == AUTO:
        encoded = None if plain.is_summed_at_roots else made(plain.nbytes, coded=Coded())
        picked = choose_codec(plain, network, ITEM_BYTES, host, encoded).codec
    if picked == NONE:
        return plain, host, f"auto: no codec is clearly faster than float32 ({format_duration(before)})"
    nbytes, coded = (
        encoded_bytes(plain.nbytes, picked, len(plain.members)),
        coded_host(picked, host, contributions=len(plain.members)),
    )
    sizes = sum_sizes(picked, len(plain.members))
    limit = bound(network, plain.members, least_bytes(nbytes, sizes), plain.collective)
    plan = made(nbytes, limit=limit, coded=Coded(sizes))
    plan = plan.with_prediction(predict(plan, network, host=coded))
    assert plan.predicted is not None
    ratio = before / plan.predicted.seconds
    verdict = f"{ratio:.2f} times as fast as" if ratio > 1 else f"{1 / ratio:.2f} times as long as"
    what = f"{picked}: {format_size(plain.nbytes)} of float32 are sent as {format_size(nbytes)}"
    if sizes:
        what += f" (expected; {format_size(round(sizes[0] * nbytes))} before they are summed)"
    return plan, coded, f"{what}, {verdict} float32 ({format_duration(before)})"
