"""Watchkeeper: durable multi-agent runs in SQLite, with memory that never stalls, watched live.

Public names load when they are first used (PEP 562), so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from watchkeeper._version import __version__

if TYPE_CHECKING:
    from watchkeeper.memory.buffering import (
        BufferConfig,
        BufferingCoordinator,
        ObservationChunk,
        ObserverOutput,
        ReflectorOutput,
    )
    from watchkeeper.memory.compactor import Compactor
    from watchkeeper.memory.context import ContextState
    from watchkeeper.memory.history import ContextLimits, WindowTooSmall
    from watchkeeper.memory.manager import HierarchicalContextManager
    from watchkeeper.runtime.run_session import Runtime

_HOMES = {
    "BufferConfig": "watchkeeper.memory.buffering",
    "BufferingCoordinator": "watchkeeper.memory.buffering",
    "Compactor": "watchkeeper.memory.compactor",
    "ContextLimits": "watchkeeper.memory.history",
    "ContextState": "watchkeeper.memory.context",
    "HierarchicalContextManager": "watchkeeper.memory.manager",
    "ObservationChunk": "watchkeeper.memory.buffering",
    "ObserverOutput": "watchkeeper.memory.buffering",
    "ReflectorOutput": "watchkeeper.memory.buffering",
    "Runtime": "watchkeeper.runtime.run_session",
    "WindowTooSmall": "watchkeeper.memory.history",
}

__all__ = [
    "BufferConfig",
    "BufferingCoordinator",
    "Compactor",
    "ContextLimits",
    "ContextState",
    "HierarchicalContextManager",
    "ObservationChunk",
    "ObserverOutput",
    "ReflectorOutput",
    "Runtime",
    "WindowTooSmall",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
