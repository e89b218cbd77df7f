"""Plans of a run: their versions, when they are made anew, and whether a new one has kept its promise."""
