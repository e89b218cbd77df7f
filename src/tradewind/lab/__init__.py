"""Emulation of wide-area networks on one machine, and measurements on them."""

from __future__ import annotations
