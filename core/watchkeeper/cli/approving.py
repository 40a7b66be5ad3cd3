"""`wk approve`, `wk deny`, `wk grants`: questions of agents, answered from another shell."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.controlling import command
from watchkeeper.cli.options import Opened, clean, complete_session, db_option, json_option, print_json
from watchkeeper.records.command_pattern import parse_pattern, pattern_of
from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound
from watchkeeper.records.file_subject import digest_of
from watchkeeper.records.text import reveal
from watchkeeper.runtime import control
from watchkeeper.store.grants import load_grants
from watchkeeper.store.lease import probe
from watchkeeper.store.placement import protected_files
from watchkeeper.store.questions import Question, find_questions, load_question

_words = click.argument("words", nargs=-1, required=True, metavar="[SESSION] ID")


def print_question(question: Question) -> None:
    """Print a question whole: nothing cut, and nothing that a terminal would obey or hide."""
    for line in question.lines():
        click.echo(reveal(line))


def _found(db: Path | None, words: tuple[str, ...], *, waiting: bool) -> tuple[Opened, str]:
    """The database, opened at the session of the question that is meant, and the question's id.

    Raises:
        BadInput: several are meant, or there are more than two words.
        NotFound: none is.
    """
    if len(words) > 2:
        raise BadInput("give the session and the question's id, or the id alone")
    session, wanted = words if len(words) == 2 else (None, words[0])
    opened = Opened(db, session, own=True) if session is not None else Opened(db)
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


def _question(opened: Opened, approval_id: str) -> Question:
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
    opened = Opened(db, session or "last", own=revoke is not None)
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


def _revoke(opened: Opened, grant_id: int, as_json: bool) -> int:
    if probe(opened.path, opened.session_id) is None:
        from watchkeeper.runtime.driving import revoke_without_host

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
