"""The chunk engine on virtual connections: whole runs with faults and invariants."""
