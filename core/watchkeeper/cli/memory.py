"""`wk memory`: what agents remember; `wk agent report`: what each agent did."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from watchkeeper.cli.help import Group
from watchkeeper.cli.options import (
    LOOKS,
    SessionHandle,
    clean,
    controls_session,
    db_option,
    explains_last,
    json_option,
    last_session_argument,
    reads_session,
    respond,
    session_argument,
)
from watchkeeper.records.errors import BadInput
from watchkeeper.records.readers import UNIT_ROLES
from watchkeeper.records.text import message_numbers, plural
from watchkeeper.store import agents, messages, plans, state
from watchkeeper.store.names import agent_label, task_name
from watchkeeper.store.place import Place


@click.group(
    cls=Group,
    examples=("wk memory status # every agent's context", 'wk memory search "parser" # what agents remember'),
)
def memory() -> None:
    """Show, search, save and edit what agents remember."""


@memory.command(
    examples=("wk memory status # the last active session", "wk memory status last --json # for a script")
)
@last_session_argument
@db_option
@json_option
@reads_session
def status(opened: SessionHandle, as_json: bool) -> int:
    """List agents' contexts: time, tokens, resume point."""
    snapshots = messages.snapshots_of(opened, opened.session_id)
    tokens = {task.assigned_agent: task.resume_token for task in plans.load_tasks(opened, opened.session_id)}
    found = []
    for one in state.agents_state(opened, opened.session_id):
        if one["role"] in UNIT_ROLES:
            continue  # they have no context
        ref, updated, turn = snapshots.get(one["id"], (None, None, None))
        found.append({
            "agent_id": one["id"], "name": one["name"], "role": one["role"], "task_id": one["task_id"], "status": one["status"],
            "waiting": one["waiting"], "turn": one["turn"], "messages": one["messages"], "view": one["view"],
            "tokens": one["context"]["used"], "limit": one["context"]["limit"], "percent": one["context"]["percent"],
            "compactions": one["compactions"], "last_updated": updated, "memory_blob_ref": ref, "snapshot_turn": turn,
            "resume_point": tokens.get(one["id"]) or f"{one['id']}:{one['turn']}:{one['messages']}",
        })  # fmt: skip
    return respond(as_json, found, map(_status_line, found))


def _status_line(agent: dict[str, Any]) -> str:
    percent = f"{agent['percent']:>3}%" if agent["percent"] is not None else "   -"
    limit = f"{agent['limit']:,}" if agent["limit"] else "?"
    saved = agent["last_updated"]
    when = time.strftime("%H:%M:%S", time.localtime(saved)) if saved else "never"
    name = clean(agent_label(agent["name"], agent["role"], agent["task_id"]), 32)
    return (
        f"{agent['agent_id']} {name:<32} {agent['waiting'] or agent['status']:<9}"
        f" {agent['tokens']:>7,}/{limit} tok {percent}"
        f"  {agent['messages']} messages, view {agent['view']}, {plural(agent['compactions'], 'compaction')}"
        f"  snapshot {when}  resumes at {agent['resume_point']}"
    )


@memory.command(
    examples=(
        "wk memory sync last # save every agent's memory now",
        "wk memory sync last --json # for a script",
    )
)
@session_argument
@db_option
@json_option
@controls_session
def sync(opened: SessionHandle, as_json: bool) -> int:
    """Save the memory of every active agent now."""
    from watchkeeper.cli.control import command

    return command(opened, "memory_sync", as_json)


@memory.command(
    examples=(
        "wk memory views planner # in the last active session",
        "wk memory views last fix-bytes --json # for a script",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="[SESSION] AGENT")
@db_option
@json_option
@explains_last(LOOKS)
def views(names: tuple[str, ...], db: Place | None, as_json: bool) -> int:
    """List the versions of an agent's context.

    The oldest comes first. SESSION defaults to `last`. `wk undo` and `wk redo` switch between them. Each line ends with the pinned messages.
    """
    if len(names) > 2:
        raise BadInput(f"unexpected argument {names[2]!r}; specify at most one session and one agent")
    session, agent = ("last", *names)[-2:]
    opened = SessionHandle(db, session)
    agent_id = opened.agent(agent)
    current = agents.progress(opened, agent_id).view_version
    found = [
        {name: one[name] for name in ("version", "parent")} | {"current": one["version"] == current} | one
        for one in messages.view_versions(opened, agent_id)
    ]
    return respond(as_json, found, map(_view_line, found))


def _view_line(view: dict[str, Any]) -> str:
    mark, parent = ">" if view["current"] else " ", f"from {view['parent']}" if view["parent"] else ""
    verbatim = f"messages from #{view['verbatim_from']}" if view["verbatim_from"] else "no messages"
    when = time.strftime("%H:%M:%S", time.localtime(view["created_at"]))
    pinned = f", pinned {', '.join(f'#{seq}' for seq in view['pins'])}" if view["pins"] else ""
    return (
        f"{mark} {view['version']:>4} {when} {view['reason']:<11} {view['tokens']:>9,} tok "
        f" {view['observations']} observations, {verbatim}, {view['elided']} shortened{pinned}  {parent}"
    )


@memory.command(
    examples=(
        "wk memory edit last planner --drop 12,14-16 # replace messages with pointers",
        "wk memory edit last planner --pin 3 # keep it verbatim",
    )
)
@session_argument
@click.argument("agent")
@click.option("--drop", metavar="NUMBERS", help="Messages to replace with pointers, such as 12,14-16.")
@click.option("--pin", metavar="NUMBERS", help="Messages to keep verbatim through every compaction.")
@click.option("--unpin", metavar="NUMBERS", help="Messages to unpin so that they can be compacted again.")
@click.option(
    "--observation", type=click.IntRange(1), metavar="N", help="The summary or observation to rewrite."
)
@click.option("--text", help="The new text; - reads standard input.")
@click.option("--preview", is_flag=True, help="Show the result without changing anything.")
@db_option
@json_option
@controls_session
def edit(
    opened: SessionHandle,
    agent: str,
    drop: str | None,
    pin: str | None,
    unpin: str | None,
    observation: int | None,
    text: str | None,
    preview: bool,
    as_json: bool,
) -> int:
    """Edit AGENT's context. Stored messages are kept, and `wk undo` restores the context.

    A tool call is never separated from its result. `wk show SESSION --json` lists the numbers of messages and
    observations; `wk memory views` lists pinned messages.
    """
    from watchkeeper.cli.control import command, show_preview

    if (observation is None) != (text is None):
        raise BadInput("--observation and --text must be used together")
    if all(each is None for each in (drop, pin, unpin, observation)):
        raise BadInput("use --drop, --pin or --unpin, or --observation with --text")
    if text == "-":
        text = sys.stdin.read()
    try:
        payload: dict[str, Any] = {
            name: message_numbers(numbers or "")
            for name, numbers in (("drop", drop), ("pin", pin), ("unpin", unpin))
        }
    except ValueError as error:
        raise BadInput(str(error)) from None
    payload["texts"] = {} if observation is None else {observation: text}
    if preview:
        return show_preview(opened, opened.agent(agent), as_json, **payload)
    return command(opened, "edit", as_json, agent_id=opened.agent(agent), payload=payload)


@memory.command(
    examples=(
        'wk memory pin last "Never push to main" # a new rule',
        "wk memory pin last 7 # make fact 7 a rule",
    )
)
@session_argument
@click.argument("fact")
@db_option
@json_option
@controls_session
def pin(opened: SessionHandle, fact: str, as_json: bool) -> int:
    """Make a fact or a text a rule for every agent.

    FACT is the number of a fact, or a new text. The rule holds for the session.
    """
    from watchkeeper.cli.control import command

    number = fact.removeprefix("#")
    payload = {"fact": int(number)} if number.isdecimal() else {"text": fact}
    return command(opened, "pin", as_json, payload=payload)


@memory.command(
    examples=("wk memory unpin last 7 # remove a rule", "wk memory unpin last 7 --json # for a script")
)
@session_argument
@click.argument("fact", type=click.IntRange(1))
@db_option
@json_option
@controls_session
def unpin(opened: SessionHandle, fact: int, as_json: bool) -> int:
    """Remove a fact from the prompts; it can still be recalled."""
    from watchkeeper.cli.control import command

    return command(opened, "unpin", as_json, payload={"fact": fact})


@memory.command(
    examples=(
        'wk memory search "parser" # in all sessions',
        'wk memory search "parser" --session last # in one, with its messages',
    )
)
@click.argument("query")
@click.option("--session", help="Search only this session.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@db_option
@json_option
@explains_last(LOOKS)
def search(query: str, session: str | None, limit: int, db: Place | None, as_json: bool) -> int:
    """Search the facts that agents remember, best match first. With --session, also search its messages."""
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
    return respond(
        as_json,
        found,
        (
            f"[{one['kind']}] {clean(one['text'], 300)}   {clean(', '.join(one['sources']), 200)}"
            for one in found
        ),
        empty="no matching facts",
    )


def _question(opened: SessionHandle, query: str) -> Any:
    """The query as a vector if `recall_vectors` is on, to compare with those that hosts stored; else None."""
    from watchkeeper.runtime.config import load_config

    if not load_config().recall_vectors:
        return None
    from watchkeeper.memory import recall
    from watchkeeper.store.search import passages

    if (why := recall.vectors_unavailable(opened)) is not None:
        click.echo(why, err=True)
        return None
    try:
        embedder = recall.load_embedder()
        passages.load_extension(opened.connection)
    except recall.VectorsMissing as missing:
        click.echo(str(missing), err=True)
        return None
    return recall.Question(embedder.name, embedder.embed([query])[0])


@click.group(
    cls=Group,
    examples=("wk agent report # the last active session", "wk agent report last --json # for a script"),
)
def agent() -> None:
    """Report what agents did."""


@agent.command(
    examples=("wk agent report # the last active session", "wk agent report last --json # for a script")
)
@last_session_argument
@db_option
@json_option
@reads_session
def report(opened: SessionHandle, as_json: bool) -> int:
    """Show what each agent did, where it stopped, and what remains."""
    whole = state.session_state(opened, opened.session_id)
    tasks = (whole["plan"] or {"tasks": []})["tasks"]
    by_id = {task["id"]: task for task in tasks}
    done = [_agent_report(one, by_id.get(one["task_id"]), whole["artifacts"]) for one in whole["agents"]]
    remains = [
        {
            "task": task_name(task["name"], task["title"], task["role"]),
            "status": task["status"],
            "waiting": task["waiting"],
            "reason": task["error"] or task["status_reason"],
        }
        for task in tasks
        if task["status"] not in ("done", "dropped")
    ]
    value = {"session": opened.session_id, "agents": done, "remains": remains}
    return respond(as_json, value, _report_lines(done, remains))


def _agent_report(
    agent: dict[str, Any], task: dict[str, Any] | None, artifacts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "agent": agent["id"], "name": agent["name"], "role": agent["role"], "task": task["name"] if task else None,
        "title": task["title"] if task else None, "status": agent["status"], "waiting": agent["waiting"],
        "turns": agent["turn"], "stopped_at": agent["status_reason"], "tokens": agent["tokens"]["total"],
        "cost_usd": agent["cost_usd"], "elapsed_seconds": agent["elapsed_seconds"],
        "artifacts": [one["name"] for one in artifacts if one["agent_id"] == agent["id"] and one["kind"] == "artifact"],
        "result": task["result"] if task and task["agent"] == agent["id"] else None,
    }  # fmt: skip


def _report_lines(done: list[dict[str, Any]], remains: list[dict[str, Any]]) -> Iterator[str]:
    for item in done:
        yield (
            f"{clean(agent_label(item['name'], item['role'], item['task']), 60)}, {item['agent']}, {item['waiting'] or item['status']}"
            f" after {item['turns']} turns: {clean(item['title'] or 'the plan', 60)}"
        )
        yield from (f"    {clean(item[key], 300)}" for key in ("stopped_at", "result") if item[key])
        names = [clean(name, 40) for name in item["artifacts"]]
        if names:
            yield f"    saved {', '.join(names[:6])}" + (
                f" and {len(names) - 6} more" if len(names) > 6 else ""
            )
    left = ", ".join(f"{clean(task['task'], 60)} ({task['waiting'] or task['status']})" for task in remains)
    yield f"remains: {left or 'nothing'}"
