"""Control from another shell: each command is queued for the host, and its answer waited for."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.options import (
    SessionHandle,
    clean,
    complete_session,
    db_option,
    json_option,
    print_json,
    session_argument,
)
from watchkeeper.records.approval_subjects import digest_of, parse_pattern, pattern_of
from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound, WatchkeeperError
from watchkeeper.records.text import reveal
from watchkeeper.runtime import control
from watchkeeper.store import budgets
from watchkeeper.store.approvals import Question, find_questions, load_grants, load_question
from watchkeeper.store.database import protected_files
from watchkeeper.store.imports import refuse_imported
from watchkeeper.store.lease import probe

ANSWER_SECONDS = 10.0
"""How long the answer of a host is waited for before the command is left queued."""

WITHOUT_HOST = frozenset({"compact", "undo", "redo", "rerun", "memory_sync", "pin", "unpin"})
"""Commands that start a host for themselves where none lives; others apply on resume."""


def command(
    opened: SessionHandle,
    kind: str,
    as_json: bool,
    *,
    agent_id: str | None = None,
    task_id: str | None = None,
    payload: dict[str, Any] | None = None,
) -> int:
    """Queue a command, wait for what comes of it, say so, and return the exit code."""
    import getpass

    refuse_imported(opened.connection, opened.session_id)
    alone = probe(opened.path, opened.session_id) is None
    status = opened.one("SELECT status FROM sessions WHERE id = ?", (opened.session_id,))[0]
    if alone and kind not in WITHOUT_HOST and status in ("done", "cancelled"):
        control.refuse_agents()
        raise BadInput(
            f"session {opened.session_id} is already {status}, so nothing would {kind.replace('_', ' ')};"
            " `wk rerun` does a task again"
        )
    command_id = control.submit(
        opened.path, opened.session_id, kind, agent_id=agent_id, task_id=task_id, payload=payload,
        requested_by=f"{getpass.getuser()} (command line)",
    )  # fmt: skip
    once = alone and kind in WITHOUT_HOST
    started = (
        control.start_host(opened.path, opened.session_id, resume=False, once=command_id) if once else None
    )
    state = control.CommandState("queued", None)
    deadline = time.monotonic() + (60.0 if once else ANSWER_SECONDS)
    while (once or not alone) and state.status == "queued" and time.monotonic() < deadline:
        time.sleep(0.02)
        ended = control.why_ended(opened.path, opened.session_id, started) if started is not None else None
        state = control.state(opened.path, command_id)
        if ended is not None and state.status == "queued":
            raise WatchkeeperError(
                f"the host that was to do it ended before it could: {ended.removeprefix('wk: ')}"
            )
        if (
            state.status == "queued"
            and not once
            and kind in WITHOUT_HOST
            and probe(opened.path, opened.session_id) is None
        ):
            # The host that lived a moment ago was about to end, and has not seen the command.
            started = control.start_host(opened.path, opened.session_id, resume=False, once=command_id)
            once = started is not None
            deadline = time.monotonic() + 60.0
    said = state.result or (
        "applies on resume: no host drives the session now"
        if alone
        else "queued; the host has not answered yet"
    )
    if as_json:
        print_json({"command": command_id, "kind": kind, "status": state.status, "result": said})
    elif state.status == "refused":
        raise BadInput(f"refused: {said}")
    else:
        click.echo(said)
    return 2 if state.status == "refused" else 0


def _who(opened: SessionHandle, name: str | None) -> str | None:
    return opened.agent(name) if name is not None else None


@click.command()
@session_argument
@click.argument("agent", required=False)
@click.option("--now", is_flag=True, help="At once: the model call that runs is abandoned.")
@db_option
@json_option
def pause(session: str, agent: str | None, now: bool, db: Path | None, as_json: bool) -> int:
    """Pause SESSION, or one AGENT of it, at its next step boundary."""
    control.refuse_agents()
    opened = SessionHandle(db, session, own=True)
    refuse_imported(opened.connection, opened.session_id)
    if probe(opened.path, opened.session_id) is None and agent is None:
        status = opened.one("SELECT status FROM sessions WHERE id = ?", (opened.session_id,))[0]
        stands = "stopped with its host; `wk resume` carries on" if status == "running" else status
        said = f"no host drives the session, and nothing runs: it is {stands}"
        print_json({"status": "applied", "result": said}) if as_json else click.echo(said)
        return 0
    return command(opened, "pause", as_json, agent_id=_who(opened, agent), payload={"now": now})


@click.command()
@session_argument
@click.argument("agent", required=False)
@click.option("--now", is_flag=True, help="Accepted for symmetry with pause; a cancel is always at once.")
@db_option
@json_option
def cancel(session: str, agent: str | None, now: bool, db: Path | None, as_json: bool) -> int:
    """End SESSION, or one AGENT's task, for good. What was done is kept."""
    control.refuse_agents()
    opened = SessionHandle(db, session, own=True)
    if agent is None and probe(opened.path, opened.session_id) is None:
        from watchkeeper.runtime.run_session import cancel_without_host

        refuse_imported(opened.connection, opened.session_id)

        with suppress(DrivenElsewhere):
            said = cancel_without_host(opened.path, opened.session_id)
            print_json({"status": "applied", "result": said}) if as_json else click.echo(said)
            return 0
    task_id = opened.task(agent) if agent else None
    return command(
        opened,
        "cancel",
        as_json,
        task_id=task_id,
        agent_id=None if task_id else _who(opened, agent),
        payload={"now": now},
    )


@click.command()
@session_argument
@click.argument("task")
@click.option("--fresh", is_flag=True, help="Without the memory of the attempt before.")
@db_option
@json_option
def rerun(session: str, task: str, fresh: bool, db: Path | None, as_json: bool) -> int:
    """Do TASK (or an AGENT's task) again, as a new attempt. Dependants run again only if their inputs
    changed."""
    opened = SessionHandle(db, session, own=True)
    task_id = opened.task(task)
    agent_id = None
    if task_id is None:
        try:
            agent_id = opened.agent(task)
        except NotFound:
            names = ", ".join(
                row["name"]
                for row in opened.all("SELECT name FROM tasks WHERE session_id = ?", (opened.session_id,))
            )
            raise NotFound(f"no task or agent {task!r}; the tasks are {names or 'none yet'}") from None
    return command(opened, "rerun", as_json, task_id=task_id, agent_id=agent_id, payload={"fresh": fresh})


@click.command()
@session_argument
@click.argument("agent")
@click.option(
    "--up-to",
    type=click.IntRange(1),
    metavar="SEQ",
    help="Compact up to this message; later ones stay as they are.",
)
@click.option("--instructions", metavar="TEXT", help="What must be kept, or left out.")
@db_option
@json_option
def compact(
    session: str, agent: str, up_to: int | None, instructions: str | None, db: Path | None, as_json: bool
) -> int:
    """Compact AGENT's context now. Nothing is lost: `wk undo` takes it back."""
    opened = SessionHandle(db, session, own=True)
    payload = {"up_to": up_to, "instructions": instructions}
    return command(opened, "compact", as_json, agent_id=opened.agent(agent), payload=payload)


@click.command()
@session_argument
@click.argument("agent")
@db_option
@json_option
def undo(session: str, agent: str, db: Path | None, as_json: bool) -> int:
    """Give AGENT back the context it had before its last compaction, if that still fits."""
    opened = SessionHandle(db, session, own=True)
    return command(opened, "undo", as_json, agent_id=opened.agent(agent))


@click.command()
@session_argument
@click.argument("agent")
@db_option
@json_option
def redo(session: str, agent: str, db: Path | None, as_json: bool) -> int:
    """Take back AGENT's last undo."""
    opened = SessionHandle(db, session, own=True)
    return command(opened, "redo", as_json, agent_id=opened.agent(agent))


@click.command()
@session_argument
@click.argument("agent")
@click.argument("text")
@db_option
@json_option
def steer(session: str, agent: str, text: str, db: Path | None, as_json: bool) -> int:
    """Send AGENT a message; it reads it before its next turn."""
    opened = SessionHandle(db, session, own=True)
    return command(opened, "steer", as_json, agent_id=opened.agent(agent), payload={"text": text})


@click.command()
@session_argument
@click.option("--task", help="Of this task's agents, instead of the whole session.")
@click.option("--usd", metavar="AMOUNT|+N", help="A limit in USD: an amount, or +N more than now.")
@click.option("--tokens", metavar="AMOUNT|+N", help="Cache reads count.")
@click.option("--turns", metavar="AMOUNT|+N", help="Model replies.")
@click.option("--seconds", metavar="AMOUNT|+N", help="Hosted wall time.")
@click.option(
    "--lift",
    type=click.Choice(["usd", "tokens", "turns", "seconds"]),
    multiple=True,
    help="Take a budget away.",
)
@db_option
@json_option
def budget(
    session: str, task: str | None, usd: str | None, tokens: str | None, turns: str | None, seconds: str | None,
    lift: tuple[str, ...], db: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Set budgets of SESSION, or of one task. Reaching one pauses, and keeps everything.

    An amount that is not more than what is used already is refused.
    """
    control.refuse_agents()
    opened = SessionHandle(db, session, own=True)
    refuse_imported(opened.connection, opened.session_id)
    task_id = None
    if task is not None:
        task_id = opened.task(task)
        if task_id is None:
            raise NotFound(f"no task {task!r} in session {opened.session_id}")
    wanted: list[tuple[str, float | None]] = []
    for kind, typed in (("usd", usd), ("tokens", tokens), ("turns", turns), ("seconds", seconds)):
        if typed is not None:
            try:
                wanted.append((kind, budgets.amount_of(opened, opened.session_id, task_id, kind, typed)))
            except ValueError as refused:
                raise BadInput(f"--{kind}: {clean(refused)}") from None
    wanted += [(kind, None) for kind in lift]
    if not wanted:
        raise BadInput("say which budget: --usd, --tokens, --turns, --seconds or --lift")
    code = 0
    for kind, amount in wanted:
        payload = {"kind": kind, "amount": amount}
        said = None
        if probe(opened.path, opened.session_id) is None:
            from watchkeeper.runtime.run_session import set_budget_without_host

            # A host may start in this very moment; the command is for it then.
            with suppress(DrivenElsewhere):
                said = set_budget_without_host(opened.path, opened.session_id, task_id, kind, amount)
        if said is None:
            code = max(code, command(opened, "set_budget", as_json, task_id=task_id, payload=payload))
        else:
            print_json({"status": "applied", "result": said}) if as_json else click.echo(said)
    return code


# --- `wk approve`, `wk deny`, `wk grants`: questions of agents, answered from another shell ---------------

_words = click.argument("words", nargs=-1, required=True, metavar="[SESSION] ID")


def print_question(question: Question) -> None:
    """Print a question whole: nothing cut, and nothing that a terminal would obey or hide."""
    for line in question.lines():
        click.echo(reveal(line))


def _found(db: Path | None, words: tuple[str, ...], *, waiting: bool) -> tuple[SessionHandle, str]:
    """The database, opened at the session of the question that is meant, and the question's id.

    Raises:
        BadInput: several are meant, or there are more than two words.
        NotFound: none is.
    """
    if len(words) > 2:
        raise BadInput("give the session and the question's id, or the id alone")
    session, wanted = words if len(words) == 2 else (None, words[0])
    opened = SessionHandle(db, session, own=True) if session is not None else SessionHandle(db)
    session_id = opened.session_id or None
    found = find_questions(opened.connection, session_id, wanted, waiting=waiting)
    if not found:
        every = [one[1] for one in find_questions(opened.connection, session_id, "", waiting=waiting)]
        which = f"there are {', '.join(every[-8:])}" if every else "there is none"
        raise NotFound(f"no question {wanted!r}{' waits' if waiting else ''}; {which}")
    if len(found) > 1:
        raise BadInput(f"{wanted!r} could be {', '.join(one[1] for one in found[:5])}; give more characters")
    opened.session_id = found[0][0]
    return opened, found[0][1]


def _question(opened: SessionHandle, approval_id: str) -> Question:
    question = load_question(opened.connection, opened.path, approval_id)
    assert question is not None
    return question


@click.command()
@_words
@click.option("--show", is_flag=True, help="Print the question whole, and answer nothing.")
@click.option(
    "--always", is_flag=True, help="Allow every call of this tool in this session, without asking again."
)
@click.option(
    "--pattern",
    metavar="WORDS",
    help="Allow the commands of a pattern, such as 'git status *', without asking again.",
)
@click.option(
    "--edit",
    metavar="TEXT",
    help="Run this instead: the command of bash, else the input as JSON; - reads it from a pipe.",
)
@click.option("--reason", help="Reason shown to the model.")
@db_option
@json_option
def approve(
    words: tuple[str, ...], show: bool, always: bool, pattern: str | None, edit: str | None, reason: str | None,
    db: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Let the tool call that waits under ID run (`last`: the newest). Without SESSION, ID may be of any
    session.

    A pattern is the words of one simple command, with * as its last word for any further arguments. It never
    matches a command with an operator, a redirection or a substitution, and what it matches runs without a
    shell.
    """
    opened, approval_id = _found(db, words, waiting=not show)
    if show:
        question = _question(opened, approval_id)
        if as_json:
            print_json(question_json(question))
        else:
            print_question(question)
            if question.status == "waiting":
                print_answers(question)
            else:
                click.echo(
                    f"\n{question.status}"
                    + (f" by {clean(question.decided_by)}" if question.decided_by else "")
                )
        return 0
    payload: dict[str, Any] = {"approval": approval_id, "reason": reason}
    if always and pattern is not None:
        raise BadInput("--always allows the whole tool, --pattern only some commands; give one of them")
    if always:
        payload["scope"] = "tool"
    if pattern is not None:
        try:
            payload |= {"scope": "pattern", "pattern": pattern_of(parse_pattern(pattern))}
        except ValueError as fault:
            raise BadInput(str(fault)) from None
    if edit is not None:
        text = sys.stdin.read().removesuffix("\n") if edit == "-" else edit
        question = _question(opened, approval_id)
        try:
            edited = payload["edited_input"] = question.edited_arguments(text)
        except ValueError as fault:
            raise BadInput(f"--edit: {fault}") from None
        # The answer is for the file that the edited input names, as it is now.
        if digest := digest_of(Path(question.workspace), question.tool, edited, protected_files(opened.path)):
            payload["subject_digest"] = digest
    return command(opened, "approve", as_json, payload=payload)


@click.command()
@_words
@click.option("--reason", help="Reason shown to the model.")
@db_option
@json_option
def deny(words: tuple[str, ...], reason: str | None, db: Path | None, as_json: bool) -> int:
    """Refuse the tool call that waits under ID (`last`: the newest). Without SESSION, ID may be of any
    session."""
    opened, approval_id = _found(db, words, waiting=True)
    return command(opened, "deny", as_json, payload={"approval": approval_id, "reason": reason})


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@click.option(
    "--revoke", type=click.IntRange(1), metavar="ID", help="Ask again from now on; SESSION must be named."
)
@db_option
@json_option
def grants(session: str | None, revoke: int | None, db: Path | None, as_json: bool) -> int:
    """List what a person allowed in SESSION (default: `last`) without asking again: tools, and patterns of
    commands."""
    if revoke is not None and session is None:
        raise BadInput("--revoke needs the session: wk grants SESSION --revoke ID")
    opened = SessionHandle(db, session or "last", own=revoke is not None)
    if revoke is not None:
        return _revoke(opened, revoke, as_json)
    found = load_grants(opened.connection, opened.session_id)
    if as_json:
        names = ("id", "tool", "pattern", "granted_by", "created_at", "revoked_by", "revoked_at")
        print_json([{name: getattr(grant, name) for name in names} for grant in found])
        return 0
    for grant in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(grant.created_at))
        ended = "" if grant.is_live else f"  revoked by {clean(grant.revoked_by)}"
        click.echo(f"{grant.id:>4}  {when}  {reveal(grant.subject)}  by {clean(grant.granted_by)}{ended}")
    if not found:
        click.echo("no grants: every question is asked")
    return 0


def _revoke(opened: SessionHandle, grant_id: int, as_json: bool) -> int:
    if probe(opened.path, opened.session_id) is None:
        from watchkeeper.runtime.run_session import revoke_without_host

        control.refuse_agents()
        with suppress(DrivenElsewhere):  # a host may start in this very moment; the command is for it then
            said = revoke_without_host(opened.path, opened.session_id, grant_id)
            print_json({"status": "applied", "result": said}) if as_json else click.echo(said)
            return 0
    return command(opened, "revoke", as_json, payload={"grant": grant_id})


def print_answers(question: Question) -> None:
    """The commands that answer a question."""
    where = f"{question.session_id} {question.id}"
    click.echo(f"\n  wk approve {where}   or   wk deny {where}")
    if question.allows_always:
        pattern = (
            f", --pattern {click.style(repr(question.suggested_pattern))}"
            if question.suggested_pattern
            else ""
        )
        click.echo(f"  with approve: --edit TEXT, --always{reveal(pattern)}")


def question_json(question: Question) -> dict[str, Any]:
    """A question for machines: its input as it would run, and the model's own."""
    return {
        "id": question.id,
        "session": question.session_id,
        "status": question.status,
        "decided_by": question.decided_by,
        "tool": question.tool,
        "agent": question.agent,
        "task": question.task,
        "workspace": question.workspace,
        "folder": question.folder,
        "cause": question.cause,
        "note": question.note,
        "input": question.arguments,
        "original_input": question.original,
        "shown": [{"title": one.title, "text": one.text} for one in question.sections],
    }
