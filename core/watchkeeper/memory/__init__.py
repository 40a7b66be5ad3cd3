"""An agent's memory, and the part of it that a model receives: tokens, views, compaction, observation,
recall.

Promises: adding a message never waits for a model; nothing is lost (every message is verbatim, elided or
covered by a cited observation, and every pointer resolves); every compaction can be undone. Import from the
submodules.
"""
