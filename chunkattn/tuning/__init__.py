"""Finds settings by measurement: the token budget of a step, and where measured settings are kept."""
