"""DS-Sync's evaluation."""
