"""Access to language models: Anthropic, the offline surveyor, slots, prices, errors.

Promises: a reply is whole or not there; each wait is shown; nothing heavy is imported before the first call.
"""

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.errors import Failure, Verdict, classify
from watchkeeper.models.events import Timeouts
from watchkeeper.models.prices import context_window, is_priced, price
from watchkeeper.models.registry import ModelConfig, resolve
from watchkeeper.models.retries import RetryPolicy
from watchkeeper.models.slots import Gate, Gates, Waiting

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
