"""`wk hooks`: sessions of Claude Code in other terminals, by its own hooks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.options import clean, database_path, db_option, is_terminal, json_option, respond, say
from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.text import duration_text, one_line, reveal
from watchkeeper.runtime.control import refuse_agents, user_name
from watchkeeper.store import database, external
from watchkeeper.store.place import Place, file_of

_project = click.option(
    "--project", type=click.Path(path_type=Path, file_okay=False), help="Only for sessions in this folder."
)
_yes = click.option("--yes", is_flag=True, help="Do not ask before the file is changed.")
_program = click.argument("program", type=click.Choice(["claude", "codex", "opencode"]))


@click.group()
def hooks() -> None:
    """Show sessions of Claude Code, Codex and OpenCode in other terminals live, and answer their questions.

    A hook is a line of shell that the program runs at an event. Ours writes the event into a file and ends; it runs no
    part of Watchkeeper, stores no environment, and never makes the program wait for an answer that cannot come. For
    OpenCode, a plugin does the same.
    """


def _file(db: Place | None) -> Path:
    return file_of(database_path(db), "reading of hooks", "choose a file with --db")


@hooks.command()
@_program
@click.option("--answer", is_flag=True, help="Also let `wk approve` and the dashboard answer its questions.")
@_project
@click.option(
    "--binary",
    type=click.Path(path_type=Path, exists=True),
    help="The program itself (default: on the PATH).",
)
@_yes
@db_option
def install(
    program: str, answer: bool, project: Path | None, binary: Path | None, yes: bool, db: Place | None
) -> int:
    """Add hooks to your settings of Claude Code or Codex, or a plugin to OpenCode. Shows the change, asks, and keeps a
    backup."""
    from watchkeeper.interop import hooks as doors
    from watchkeeper.interop import opencode_plugin as plugin

    refuse_agents()
    path = _file(db)
    if answer and program == "codex":
        raise BadInput("questions of Codex are answered in its terminal; --answer is for claude and opencode")
    if program == "opencode":
        found = doors.Program(
            doors.find_version(os.environ, program, plugin.FIRST_OPENCODE, binary), plugin.EVENTS, program
        )
        settings = plugin.settings_of(os.environ, project)
        change = plugin.plan_install(path, settings, found, answer=answer)
    else:
        settings = doors.settings_of(os.environ, project, program)
        found = (doors.find_codex if program == "codex" else doors.find_program)(os.environ, binary)
        change = doors.plan_install(path, settings, found, answer=answer)
    assert change.record is not None
    if not change.is_needed:
        doors.install(path, settings, change)
        say(f"the hooks are in {settings.path} already")
        return 0
    click.echo(reveal(change.diff()), nl=False)
    left_out = [event for event in doors.EVENTS if event not in change.record.events]
    if left_out and program == "claude":
        which = (
            f"Claude Code {found.version}" if found.version else "no `claude` is on the PATH, and an old one"
        )
        say(f"left out, since {clean(which)} does not know them: {', '.join(left_out)}")
    if answer and not change.record.answers:
        say("left out: answering; this Claude Code has no PermissionRequest hook")
    if change.note:
        say(f"note: {change.note}")
    _ask(yes, settings.path)
    doors.install(path, settings, change)
    soon = {
        "claude": "running sessions use them at once",
        "codex": "start codex once and trust them",
        "opencode": "sessions that you start from now on use it",
    }
    what = "the plugin" if program == "opencode" else f"{len(change.record.events)} hooks"
    say(f"installed {what}; {soon[program]}")
    if not external.is_read(path):
        say(
            "nothing reads them yet: `wk import --watch-all --install` does so in the background, `wk watch claude` meanwhile"
        )
    return 0


@hooks.command()
@_program
@_project
@_yes
@db_option
def uninstall(program: str, project: Path | None, yes: bool, db: Place | None) -> int:
    """Take the hooks out again. A file that was not changed meanwhile is restored byte for byte."""
    from watchkeeper.interop import hooks as doors
    from watchkeeper.interop import opencode_plugin as plugin

    refuse_agents()
    path = _file(db)
    if program == "opencode":
        settings = plugin.settings_of(os.environ, project)
        change = plugin.plan_uninstall(path, settings.path)
    else:
        settings = doors.settings_of(os.environ, project, program)
        change = doors.plan_uninstall(path, settings.path)
    click.echo(reveal(change.diff()), nl=False)
    if change.note:
        say(f"note: {change.note}")
    _ask(yes, settings.path)
    doors.uninstall(path, change)
    say(
        f"deleted {settings.path}: there was none before"
        if change.after is None
        else f"restored {settings.path}"
    )
    return 0


def _ask(yes: bool, path: Path) -> None:
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"nothing was changed; add --yes to change {path} without a question")
    click.confirm(f"Change {path}?", abort=True)


@hooks.command()
@db_option
@json_option
def status(db: Place | None, as_json: bool) -> int:
    """Show what is installed, what other terminals do, and which questions wait."""
    from watchkeeper.interop import hooks as doors

    path = _file(db)
    folder = external.hooks_folder(path)
    installed = [
        {
            "settings": each.path,
            "events": each.events,
            "answers": each.answers,
            "registered": doors.is_registered(folder, each),
            "version": each.version,
        }
        for each in doors.load_installed(folder)
    ]
    found = external.External()
    if database.is_there(path):
        connection = database.open_readonly(path)
        try:
            found = external.load_external(connection, ended_since=time.time() - 3_600)
        finally:
            connection.close()
    value = {
        "installed": installed,
        "read": external.is_read(path),
        "pending": _pending(folder),
        "sessions": [_session_json(each) for each in found.sessions],
        "questions": [question_json(each) for each in found.questions],
    }
    return respond(
        as_json, value, _status_lines(value, found), empty="no hooks are installed: wk hooks install claude"
    )


def _status_lines(value: dict[str, Any], found: external.External) -> Iterator[str]:
    for each in value["installed"]:
        state = "" if each["registered"] else "; some are gone from the file: install them again"
        answers = ", answers questions" if each["answers"] else ""
        yield f"{clean(each['settings'])}: {len(each['events'])} hooks{answers}{state}"
    if value["installed"] and not value["read"]:
        yield f"nothing reads them ({value['pending']} events wait): wk import --watch-all, or wk watch claude"
    now = time.time()
    for session in found.sessions:
        state = "silent" if session.is_silent(now) else session.status
        reason = f"  {clean(session.reason, 80)}" if session.reason else ""
        known = session.session_id if session.imported else "not imported"
        yield f"{state:<10} {known:<12} {duration_text(max(0, now - session.last_active)):>7}  {clean(session.folder, 60)}{reason}"
    for question in found.questions:
        shown = one_line(str(question.input.get("command") or question.input), 80)
        yield f"question {question.id[:8]} {question.status}: {reveal(question.tool)} {reveal(shown)}"
        if question.status == "waiting":
            yield f"  wk approve {question.id[:8]} --show   or   wk deny {question.id[:8]}"


def _pending(folder: Path) -> int:
    try:
        return len(os.listdir(folder / "spool"))
    except OSError:
        return 0


def _session_json(session: external.ExternalSession) -> dict[str, Any]:
    return {
        "program": session.program,
        "program_session": session.program_session,
        "session": session.session_id if session.imported else None,
        "pid": session.pid,
        "folder": session.folder,
        "status": session.status,
        "reason": session.reason,
        "silent": session.is_silent(time.time()),
        "last_active": session.last_active,
        "compactions": list(session.compactions),
    }


@hooks.command()
@click.argument("session", metavar="SESSION")
@click.argument("text", default="")
@db_option
def instructions(session: str, text: str, db: Place | None) -> int:
    """Tell the compactions of SESSION what to keep; without TEXT, nothing any more.

    SESSION is Claude Code's own id, the id here, or a beginning of one of them. The text is added to the program's own
    instructions at each compaction.
    """
    refuse_agents()
    path = _file(db)
    connection = database.open_readonly(path)
    try:
        known = external.load_external(connection).sessions
    finally:
        connection.close()
    found = {
        each.program_session
        for each in known
        if each.program_session.startswith(session) or (each.imported and each.session_id.startswith(session))
    }
    if len(found) != 1:
        raise NotFound(
            f"{len(found) or 'no'} live sessions of other terminals match {clean(session, 80)}; see wk hooks status"
        )
    external.set_compact_instructions(path, found.pop(), text)
    say("sent with its next compactions" if text.strip() else "nothing more is sent with its compactions")
    return 0


# Questions of other terminals: `wk approve` and `wk deny` come here for those.


def find_question(db: Place | None, words: tuple[str, ...]) -> tuple[Path, external.ExternalQuestion] | None:
    """The one question of another terminal that `words` name; None where it is none of those.

    Raises:
        BadInput: several match.
    """
    path = database_path(db)
    if len(words) != 1 or not isinstance(path, Path) or not database.is_there(path):
        return None
    connection = database.open_readonly(path)
    try:
        found = external.find_external_questions(connection, words[0])
    finally:
        connection.close()
    if len(found) > 1:
        raise BadInput(f"{words[0]!r} may be {', '.join(each.id[:12] for each in found)}")
    return (path, found[0]) if found else None


def answer(
    path: Path, question: external.ExternalQuestion, as_json: bool, *, allow: bool, reason: str | None = None,
    chosen: tuple[str, ...] = (),
) -> int:  # fmt: skip
    """Hand an answer to the terminal's session.

    Raises:
        BadInput: the question is gone, or the answer does not fit.
    """
    refuse_agents()
    choices = None
    if allow and question.choices:
        if len(chosen) != len(question.choices):
            raise BadInput(
                f"answer with --choose, once for each of its {len(question.choices)} questions: see --show"
            )
        choices = {
            str(place): _label(one, text)
            for place, (one, text) in enumerate(zip(question.choices, chosen, strict=True))
        }
    elif chosen:
        raise BadInput("--choose answers only multiple-choice questions")
    try:
        external.answer_question(
            path, question, user_name(), allow=allow, reason=reason or "", choices=choices
        )
    except ValueError as fault:
        raise BadInput(str(fault)) from None
    said = "sent; the session's log confirms it: wk hooks status"
    return respond(as_json, {"status": "sent", "question": question.id}, said)


def _label(question: dict[str, Any], typed: str) -> str:
    """The label of the option with that number, or the text itself."""
    options = [str(one.get("label", "")) for one in question.get("options", ()) if isinstance(one, dict)]
    return options[int(typed) - 1] if typed.isdigit() and 0 < int(typed) <= len(options) else typed


def question_lines(question: external.ExternalQuestion) -> Iterator[str]:
    """A whole question, and how to answer it. Whatever a terminal would obey or hide is made visible."""
    import json

    yield f"{question.program} in another terminal asks (process {question.pid}): {reveal(question.tool)}"
    for place, one in enumerate(question.choices, 1):
        yield f"\n  {place}. {reveal(str(one.get('question', '')))}"
        for number, option in enumerate(
            one.get("options", ()) if isinstance(one.get("options"), list) else (), 1
        ):
            about = option if isinstance(option, dict) else {}
            yield f"     {number}) {reveal(str(about.get('label', '')))}  {reveal(str(about.get('description', '')))}"
    if not question.choices:
        for name, value in question.input.items():
            yield f"  {reveal(name)}: {reveal(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))}"
    choose = " --choose NUMBER|TEXT" * len(question.choices)
    yield f"\n  wk approve {question.id[:8]}{choose}   or   wk deny {question.id[:8]} --reason TEXT"


def question_json(question: external.ExternalQuestion) -> dict[str, Any]:
    """A question of another terminal as JSON."""
    return {
        "id": question.id,
        "program": question.program,
        "program_session": question.program_session,
        "session": question.session_id,
        "status": question.status,
        "tool": question.tool,
        "input": question.input,
        "agent": question.agent,
        "asked_at": question.asked_at,
    }
