"""Links that keep breaking although they come back each time: plans avoid them for a while.

Every break halts the rounds that use the link. A link that breaks more often than a round takes would keep rounds from
ending: so one that came back several times within the patience is left out of plans, for as long as the patience at
first, and twice as long each time that it begins again. Where no other path exists it stays in use.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tradewind.control.deadlines import Deadlines

MOST_RETURNS = 3
"""Times that a link may come back within the patience and still be used at once."""
LONGEST_HOLDS = 4
"""Times that the hold of a link doubles."""


@dataclass(slots=True)
class _Link:
    returns_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_RETURNS + 1))
    holds: int = 0
    until_s: float | None = None
    """When it may be used again; None: it may now."""


class Flapping:
    """Which links are left out of plans because they keep breaking."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._patience_s = deadlines.patience_s
        self._links: dict[frozenset[str], _Link] = {}

    def came_back(self, a: str, b: str, now_s: float) -> bool:
        """Note that a link works again after a break; return whether it has done so too often to be used at once."""
        link = self._links.setdefault(frozenset((a, b)), _Link())
        if link.returns_s and now_s - link.returns_s[-1] > LONGEST_HOLDS * 2**link.holds * self._patience_s:
            link.holds = 0
        link.returns_s.append(now_s)
        return len(link.returns_s) > MOST_RETURNS and now_s - link.returns_s[0] <= self._patience_s

    def hold(self, a: str, b: str, now_s: float) -> float:
        """Leave a link out from now on; return for how many seconds."""
        link = self._links.setdefault(frozenset((a, b)), _Link())
        seconds = self._patience_s * 2.0**link.holds
        link.holds = min(LONGEST_HOLDS, link.holds + 1)
        link.until_s = now_s + seconds
        link.returns_s.clear()
        return seconds

    def is_held(self, a: str, b: str) -> bool:
        """Whether a link is left out now."""
        link = self._links.get(frozenset((a, b)))
        return link is not None and link.until_s is not None

    @property
    def held(self) -> list[tuple[str, str]]:
        """The links that are left out now."""
        pairs = [tuple(sorted(pair)) for pair, link in self._links.items() if link.until_s is not None]
        return sorted((a, b) for a, b in pairs)

    def release(self, a: str, b: str) -> None:
        """Use a link again before its hold is over."""
        self._links[frozenset((a, b))].until_s = None

    def forget(self, site: str) -> None:
        """Forget the links of a rank that is lost: it may come back as another process."""
        self._links = {pair: link for pair, link in self._links.items() if site not in pair}

    def over(self, now_s: float) -> list[tuple[str, str]]:
        """Return the links whose hold is over, each once."""
        found = []
        for pair, link in self._links.items():
            if link.until_s is not None and link.until_s <= now_s:
                link.until_s = None
                a, b = sorted(pair)
                found.append((a, b))
        return sorted(found)

    @property
    def wake_at_s(self) -> float:
        """Time at which the next hold is over."""
        return min((link.until_s for link in self._links.values() if link.until_s is not None), default=float("inf"))
