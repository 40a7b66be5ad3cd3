"""Searching what sessions say: the index of words, messages, sessions, and the passages that recall reads."""
