"""The controller's view of the network: link estimates from measurements, and active probes."""
