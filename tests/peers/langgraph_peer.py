"""The work on LangGraph, with its SQLite checkpointer: a node for every effect, edges that fan out and in.

Resumed as its documentation says: `invoke(None)` on the same thread, until the graph has nothing to do next.
"""

from __future__ import annotations

import operator
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from tests.peers import work


class State(TypedDict):
    """What the nodes hand on."""

    did: Annotated[list[str], operator.add]
    result: str


def _graph(log: Path) -> Any:
    builder = StateGraph(State)
    for worker in work.WORKERS:
        previous: str = START
        for step in range(work.STEPS):
            name = f"{worker}-{step}"
            builder.add_node(name, lambda state, name=name: {"did": [work.effect(log, name)]})
            builder.add_edge(previous, name)
            previous = name
    builder.add_node(
        "join", lambda state: {"result": work.result_of(state["did"])} if work.effect(log, "join-0") else {}
    )
    builder.add_edge([f"{worker}-{work.STEPS - 1}" for worker in work.WORKERS], "join")
    builder.add_edge("join", END)
    return builder


def run(folder: Path, durability: str | None = None) -> str:
    """Begin or resume; returns the result that the store holds at the end."""
    connection = sqlite3.connect(folder / "peer.db", check_same_thread=False)
    graph = _graph(folder / "effects.log").compile(checkpointer=SqliteSaver(connection))
    config: Any = {"configurable": {"thread_id": "1"}}
    options: dict[str, Any] = {"durability": durability} if durability else {}
    state = graph.get_state(config)
    graph.invoke(None if state.created_at else {"did": [], "result": ""}, config, **options)
    return str(graph.get_state(config).values.get("result", ""))


def run_sync(folder: Path) -> str:
    """As `run`, with `durability="sync"`, which is not the default."""
    return run(folder, "sync")


def marked(folder: Path) -> set[str]:
    """The effects that the store itself says may have been had twice: it keeps no such mark."""
    return set()
