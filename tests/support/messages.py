"""The form of an error message: what is wrong, with which value, what was expected, and what to do."""

from __future__ import annotations

import re

PRIVATE = re.compile(
    r"\b(somebody|nobody|everybody|whoever|anybody)\b|makes? no sense|\bis no \w+ (for|of)\b|\bSay \w+=|cannot be had",
    re.IGNORECASE,
)
"""Words that a reader from the field would have to decode."""
REMEDY = re.compile(
    r"\b(must|need|needs|needed|expected|only|use|give|set|start|choose|try|check|raise|lower|remove|add|write|run|"
    r"install|pass|make|move|name|connect|replace|leave|keep|wait|report|correct|increase|reduce|allow|ask|call|convert|between|"
    r"define|merge|save|create|submit|put|see|members:|tradewind config|docs/|at least|at most|up to|one of|known|"
    r"did you mean|takes?|has the|is the file complete|instead|again)\b",
    re.IGNORECASE,
)
"""One of these says what was expected, or what to do."""


def problems_of(message: str, *values: str) -> list[str]:
    """What is wrong with the form of a message that has to name these values."""
    found = [f"does not name {value!r}" for value in values if value not in message]
    if PRIVATE.search(message):
        found.append("uses words that have to be decoded")
    if not REMEDY.search(message):
        found.append("does not say what was expected or what to do")
    return found
