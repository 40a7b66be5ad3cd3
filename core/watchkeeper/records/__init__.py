"""What is stored, as frozen dataclasses and state machines. No I/O, no other room imported."""
