"""Experiments: the papers' evaluations, contests against peers, and the demo. Only `cli` imports this."""
