"""CREW's evaluation."""
