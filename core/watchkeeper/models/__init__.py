"""Access to language models: Anthropic, the offline surveyor, slots, prices, errors."""
