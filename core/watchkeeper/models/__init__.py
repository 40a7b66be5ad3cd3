"""Access to language models: Anthropic, the offline surveyor, slots, prices, errors.

Promises: a reply is whole or not there; each wait is shown; nothing heavy is imported before the first call.
"""
