"""Planners that solve for flows: CREW's stars and relays."""
