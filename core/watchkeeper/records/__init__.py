"""Stored records as frozen dataclasses, and state machines. No I/O; imports no other room."""
