"""Emulated networks on one machine, and what to measure on them."""

from __future__ import annotations
