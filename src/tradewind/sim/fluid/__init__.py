"""The fluid data plane of the simulator: rounds as flows on shared capacities."""
