"""Planners that pack trees, and what they share."""
