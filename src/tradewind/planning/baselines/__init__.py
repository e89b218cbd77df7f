"""Planners of other systems, for comparison."""
