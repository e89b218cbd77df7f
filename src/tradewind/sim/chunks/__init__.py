"""The chunk engine on virtual connections: whole runs, faults and what must hold."""
