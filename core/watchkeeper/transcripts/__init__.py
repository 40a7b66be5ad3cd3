"""Readers of other agents' session logs."""
