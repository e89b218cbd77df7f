"""Selective Reduce's evaluation."""
