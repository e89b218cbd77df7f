"""The chunk engine: what one site does about every chunk of every round, as a state machine without I/O."""
