"""The terminal dashboard: a viewer in its own process that reads the store and writes commands."""

import os

# Textual paints on a grid of 1/60 s; what a key changed would wait for the next line of it. Read when Textual
# is imported.
os.environ.setdefault("TEXTUAL_FPS", "120")
