"""The network as the controller knows it: measurements, estimates, and what is measured on purpose."""
