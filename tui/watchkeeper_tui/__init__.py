"""The terminal dashboard: a viewer in its own process that reads the store and writes commands."""
