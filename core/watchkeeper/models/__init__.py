"""Access to language models: Anthropic, the offline surveyor, slots, prices, errors.

Promises: a reply is whole or not there; each wait is shown; nothing heavy is imported before the first call.
"""

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.failures import Failure, RetryPolicy, Verdict, classify
from watchkeeper.models.gate import Gate, Gates, Waiting
from watchkeeper.models.registry import ModelConfig, context_window, is_priced, price, resolve
from watchkeeper.models.stream import Timeouts

__all__ = [
    "AnthropicModel",
    "Failure",
    "Gate",
    "Gates",
    "ModelConfig",
    "RetryPolicy",
    "Timeouts",
    "Verdict",
    "Waiting",
    "classify",
    "context_window",
    "is_priced",
    "price",
    "resolve",
]
