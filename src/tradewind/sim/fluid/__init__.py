"""Rounds as flows on shared capacities: a data plane of the simulator."""
