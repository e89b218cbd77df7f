"""Planners that pack trees, and the parts that they share."""
