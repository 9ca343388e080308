"""Drivers around a driver: they batch, cache or encrypt what passes."""
