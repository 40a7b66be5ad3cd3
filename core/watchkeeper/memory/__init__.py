"""What an agent remembers, and what of it a model is shown: tokens, views, compaction, observation, recall.

Promises: adding a message never waits for a model; nothing is lost (every message is verbatim, elided or
covered by a cited observation, and every pointer resolves); every compaction can be undone. Import from the
submodules.
"""
