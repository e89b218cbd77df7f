"""Rounds: who synchronises when, and a round from its start to its end."""
