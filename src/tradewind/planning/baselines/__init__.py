"""Planners that others use, to compare with."""
