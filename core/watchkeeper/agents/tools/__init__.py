"""The tools that agents call: their declarations, their permissions, and their isolation."""
