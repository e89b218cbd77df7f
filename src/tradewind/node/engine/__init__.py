"""The chunk engine: how one site handles every chunk of every round, as a state machine without I/O."""
