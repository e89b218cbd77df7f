"""Rounds: which ranks synchronise when, and each round from its start to its end."""
