"""MTREE's evaluation."""
