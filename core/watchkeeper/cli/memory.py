"""`wk memory status|sync|search|views|pin|unpin` and `wk agent report`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.options import (
    SessionHandle,
    clean,
    db_option,
    json_option,
    last_session_argument,
    print_json,
    session_argument,
)
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import context_percent, context_used
from watchkeeper.records.text import plural
from watchkeeper.store import state
from watchkeeper.store.driver import decode
from watchkeeper.store.snapshot import composition_of


@click.group()
def memory() -> None:
    """What agents remember: status, sync, search, views, pin, unpin."""


@memory.command()
@last_session_argument
@db_option
@json_option
def status(session: str, db: Path | None, as_json: bool) -> int:
    """List the agents with persistent contexts: snapshot time, tokens, resume point."""
    opened = SessionHandle(db, session)
    rows = opened.all(
        "SELECT a.id, a.name, a.status, a.turn, a.last_seq, a.view_version, a.context_tokens, a.composition,"
        " a.context_limit, a.compactions,"
        " s.last_updated, s.memory_blob_ref, s.turn AS snapshot_turn, s.last_seq AS snapshot_seq,"
        " t.resume_token FROM agents a"
        " LEFT JOIN memory_snapshots s ON s.agent_id = a.id LEFT JOIN tasks t ON t.assigned_agent = a.id"
        " WHERE a.session_id = ? ORDER BY a.rowid",
        (opened.session_id,),
    )
    found = [
        {
            "agent_id": row["id"], "name": row["name"], "status": row["status"], "turn": row["turn"], "messages": row["last_seq"],
            "view": row["view_version"], "tokens": used, "limit": row["context_limit"],
            "percent": context_percent(used, row["context_limit"]),
            "compactions": row["compactions"], "last_updated": row["last_updated"], "memory_blob_ref": row["memory_blob_ref"],
            "snapshot_turn": row["snapshot_turn"], "resume_point": row["resume_token"] or f"{row['id']}:{row['turn']}:{row['last_seq']}",
        }
        for row in rows
        for used in (context_used(row["context_tokens"], composition_of(row["composition"])),)
    ]  # fmt: skip
    if as_json:
        print_json(found)
        return 0
    for one in found:
        percent = f"{one['percent']:>3}%" if one["percent"] is not None else "   -"
        when = (
            time.strftime("%H:%M:%S", time.localtime(one["last_updated"]))
            if one["last_updated"]
            else "not yet"
        )
        click.echo(
            f"{one['agent_id']} {clean(one['name'], 16):<16} {one['status']:<9}"
            f" {one['tokens']:>7,}/{one['limit']:,} tok {percent}"
            f"  {one['messages']} messages, view {one['view']}, {plural(one['compactions'], 'compaction')}"
            f"  snapshot {when}  resumes at {one['resume_point']}"
        )
    return 0


@memory.command()
@session_argument
@db_option
@json_option
def sync(session: str, db: Path | None, as_json: bool) -> int:
    """Persist the memory of every active agent now."""
    from watchkeeper.cli.control import command

    return command(SessionHandle(db, session, own=True), "memory_sync", as_json)


@memory.command()
@click.argument("names", nargs=-1, required=True, metavar="[SESSION] AGENT")
@db_option
@json_option
def views(names: tuple[str, ...], db: Path | None, as_json: bool) -> int:
    """List the versions of AGENT's context in SESSION (default: the newest), oldest first.

    They are what `wk undo` and `wk redo` move between.
    """
    if len(names) > 2:
        raise BadInput(f"give at most a session and an agent; {names[2]!r} is one too many")
    session, agent = ("last", *names)[-2:]
    opened = SessionHandle(db, session)
    agent_id = opened.agent(agent)
    current = opened.one("SELECT view_version FROM agents WHERE id = ?", (agent_id,))[0]
    found = [
        {
            "version": row["version"], "parent": row["parent"], "current": row["version"] == current, "reason": row["reason"],
            "tokens": row["tokens"], "observations": len(decode(row["observations"])), "verbatim_from": row["verbatim_from"],
            "elided": len(decode(row["elided"])), "compaction": row["compaction_id"], "created_at": row["created_at"],
        }
        for row in opened.all(
            "SELECT version, parent, reason, tokens, observations, verbatim_from, elided, compaction_id,"
            " created_at FROM views"
            " WHERE agent_id = ? ORDER BY version",
            (agent_id,),
        )
    ]  # fmt: skip
    if as_json:
        print_json(found)
        return 0
    for one in found:
        mark, parent = ">" if one["current"] else " ", f"from {one['parent']}" if one["parent"] else ""
        verbatim = f"messages from #{one['verbatim_from']}" if one["verbatim_from"] else "no messages"
        when = time.strftime("%H:%M:%S", time.localtime(one["created_at"]))
        click.echo(
            f"{mark} {one['version']:>4} {when} {one['reason']:<11} {one['tokens']:>9,} tok "
            f" {one['observations']} observations,"
            f" {verbatim}, {one['elided']} shortened  {parent}"
        )
    return 0


@memory.command()
@session_argument
@click.argument("fact")
@db_option
@json_option
def pin(session: str, fact: str, db: Path | None, as_json: bool) -> int:
    """Put a fact (its number, or a new text) into every prompt of the session."""
    from watchkeeper.cli.control import command

    number = fact.removeprefix("#")
    payload = {"fact": int(number)} if number.isdecimal() else {"text": fact}
    return command(SessionHandle(db, session, own=True), "pin", as_json, payload=payload)


@memory.command()
@session_argument
@click.argument("fact", type=click.IntRange(1))
@db_option
@json_option
def unpin(session: str, fact: int, db: Path | None, as_json: bool) -> int:
    """Take a fact out of the prompts; it can still be recalled."""
    from watchkeeper.cli.control import command

    return command(SessionHandle(db, session, own=True), "unpin", as_json, payload={"fact": fact})


@memory.command()
@click.argument("query")
@click.option("--session", help="Only in this session.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@db_option
@json_option
def search(query: str, session: str | None, limit: int, db: Path | None, as_json: bool) -> int:
    """Search what agents have remembered, best first; in one session, what was said in it too."""
    from watchkeeper.memory.recall import recall

    opened = SessionHandle(db, session)
    question = _question(opened, query)
    found: list[dict[str, Any]] = [
        {
            "id": one.fact_id, "kind": one.kind, "text": one.text, "sources": list(one.sources), "agent_id": one.agent_id,
            "why": one.why,
        }
        for one in recall(opened, opened.session_id or None, query, limit=limit, question=question)
    ]  # fmt: skip
    if as_json:
        print_json(found)
        return 0
    for one in found:
        click.echo(f"[{one['kind']}] {clean(one['text'], 300)}   {clean(', '.join(one['sources']), 200)}")
    if not found:
        click.echo("nothing remembered matches")
    return 0


def _question(opened: SessionHandle, query: str) -> Any:
    """The query as a vector where `recall_vectors` is on, to compare with the vectors that hosts have made;
    else None."""
    from watchkeeper.runtime.config import load_config

    if not load_config().recall_vectors:
        return None
    from watchkeeper.memory.recall import session
    from watchkeeper.store.search import passages

    try:
        embedder = session.load()
        passages.load_extension(opened.connection)
    except session.VectorsMissing as missing:
        click.echo(str(missing), err=True)
        return None
    return session.Question(embedder.name, embedder.embed([query])[0])


@click.group()
def agent() -> None:
    """Reports on agents: who did what."""


@agent.command()
@last_session_argument
@db_option
@json_option
def report(session: str, db: Path | None, as_json: bool) -> int:
    """Who did what, where it stopped, and what remains."""
    opened = SessionHandle(db, session)
    whole = state.session_state(opened, opened.session_id)
    plan = whole["plan"] or {"tasks": []}
    by_id = {task["id"]: task for task in plan["tasks"]}
    done = []
    for one in whole["agents"]:
        task = by_id.get(one["task_id"])
        done.append(
            {
                "agent": one["id"], "name": one["name"], "role": one["role"], "task": task["name"] if task else None,
                "status": one["status"], "turns": one["turn"], "stopped_at": one["status_reason"], "tokens": one["tokens"]["total"],
                "cost_usd": one["cost_usd"], "elapsed_seconds": one["elapsed_seconds"],
                "artifacts": [a["name"] for a in whole["artifacts"] if a["agent_id"] == one["id"] and a["kind"] == "artifact"],
                "result": task["result"] if task and task["agent"] == one["id"] else None,
            }
        )  # fmt: skip
    remains = [
        {"task": task["name"], "status": task["status"], "reason": task["error"] or task["status_reason"]}
        for task in plan["tasks"]
        if task["status"] not in ("done", "dropped")
    ]
    if as_json:
        print_json({"session": opened.session_id, "agents": done, "remains": remains})
        return 0
    for item in done:
        what = clean(item["task"] or "the plan", 60)
        click.echo(
            f"{clean(item['name'], 40)} ({item['agent']}), {item['status']} after {item['turns']} turns:"
            f" {what}"
        )
        for label in ("stopped_at", "result"):
            if item[label]:
                click.echo(f"    {clean(item[label], 300)}")
        if item["artifacts"]:
            names = [clean(name, 40) for name in item["artifacts"]]
            click.echo(
                f"    saved {', '.join(names[:6])}"
                + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            )
    click.echo(
        "remains: " + (", ".join(f"{clean(r['task'], 40)} ({r['status']})" for r in remains) or "nothing")
    )
    return 0
