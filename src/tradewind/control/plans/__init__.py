"""Plans of a run: their versions, when they are made again (replanning), and trials of new ones."""
