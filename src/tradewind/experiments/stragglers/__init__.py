"""Time to accuracy with stragglers, on real connections."""
