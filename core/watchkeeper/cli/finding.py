"""`wk sessions --search`: bring the index up to date if that is quick, search, and say what was not looked
at."""

from __future__ import annotations

from typing import Any

import click

from watchkeeper.cli.options import Opened, clean
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database, state
from watchkeeper.store.dashboard_sessions import list_sessions
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.message_index import index_until, unindexed
from watchkeeper.store.message_search import Found, search_by_session
from watchkeeper.store.session_search import parse_filters

INDEXING_SECONDS = 5.0
SEARCHING_SECONDS = 10.0


def found_sessions(opened: Opened, search: str, limit: int) -> list[dict[str, Any]]:
    """The sessions that `search` finds, as `state.summaries` tells them; `found` is where a message holds the
    words, or None."""
    _index(opened)
    words = parse_filters(search).text
    try:
        messages = search_by_session(
            opened.connection, words, limit=100_000, deadline_seconds=SEARCHING_SECONDS
        )
        hits = {hit.session_id: hit for hit in messages.hits}
        lines = list_sessions(opened.connection, search, limit, also=hits)
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(database.explain(opened.path, error)) from error
    _say_what_is_missing(messages)
    rows = state.summaries(opened, among=[line.id for line in lines], limit=limit)
    for row in rows:
        hit = hits.get(row["id"])
        row["found"] = hit and {
            "agent": hit.agent_id,
            "seq": hit.seq,
            "pieces": [[piece.text, piece.found] for piece in hit.snippet],
        }
    return rows


def say_found(found: dict[str, Any]) -> None:
    """One line below the session: where the words are, and they in their context."""
    text = "".join(
        click.style(_bare(part), bold=True) if marked else _bare(part) for part, marked in found["pieces"]
    )
    click.echo(f"    {clean(found['agent'], 40)} #{found['seq']}: {text}")


def _bare(text: str) -> str:
    """Harmless for a terminal, with the spaces at its ends, which `clean` takes off."""
    lead, tail = " " if text[:1].isspace() else "", " " if text[1:] and text[-1:].isspace() else ""
    return f"{lead}{clean(text)}{tail}"


def _index(opened: Opened) -> None:
    """Index what waits, for a while. A file that cannot be written is searched as it is."""
    if unindexed(opened.connection) == 0:
        return
    try:
        connection = database.open_writable(opened.path)
    except StoreUnusable:
        return
    try:
        connection.execute("PRAGMA synchronous=NORMAL")
        index_until(connection, seconds=INDEXING_SECONDS)
    except sqlite3.OperationalError:
        return  # the disk is full, say: what is not indexed is read
    finally:
        connection.close()


def _say_what_is_missing(messages: Found) -> None:
    if not messages.complete:
        click.echo(
            f"wk: after {SEARCHING_SECONDS:.0f} s the older messages were not searched; narrow it with more"
            " words, or search again",
            err=True,
        )
