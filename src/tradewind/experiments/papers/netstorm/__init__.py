"""NetStorm's evaluation, computed and live."""
