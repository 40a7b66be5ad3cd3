"""What an agent keeps in mind: tokens, the context view, compaction, observational memory."""
