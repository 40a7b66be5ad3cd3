"""Commands for other programs: `wk mcp`, an MCP server over the database, on standard input and output or on loopback, and
its installation; and `wk hooks`, sessions in other terminals by the hooks of their programs.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli.guard import SHORTEST_TOKEN, Guard, Refused, Request, new_token, token_file
from watchkeeper.cli.help import Group
from watchkeeper.cli.options import clean, database_path, db_option, is_terminal, json_option, respond, say
from watchkeeper.interop import clients
from watchkeeper.records.errors import BadInput, NotFound, reason_of
from watchkeeper.records.text import duration_text, one_line, reveal
from watchkeeper.runtime.control import refuse_agents, user_name
from watchkeeper.store import database, external
from watchkeeper.store.place import DatabaseUrl, Place, file_of

if TYPE_CHECKING:
    from watchkeeper.interop.mcp import SessionServer


DEFAULT_PORT = 8766
TOKEN_VARIABLE = "WATCHKEEPER_MCP_TOKEN"

_control = click.option(
    "--allow-control", is_flag=True, help="Also offer pause, resume, steer, compact, undo and approve."
)


@click.group(
    invoke_without_command=True,
    cls=Group,
    examples=(
        "wk mcp install claude # show the configuration that adds it",
        "wk mcp --http # listen on 127.0.0.1, with a token",
    ),
)
@click.option("--http", is_flag=True, help="Listen on 127.0.0.1 instead; clients need the token.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 = pick a free port.",
)
@_control
@db_option
@click.pass_context
def mcp(ctx: click.Context, http: bool, port: int, allow_control: bool, db: Place | None) -> int:
    """Serve sessions to agents and editors over MCP (on standard input and output) until the client disconnects.

    Clients can read sessions, plans, agents, compactions, passages, facts, files and usage. Inside a run, the server
    never offers control. With --http, WATCHKEEPER_MCP_TOKEN sets the token.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from watchkeeper.interop.mcp import SessionServer

    served = SessionServer(database_path(db), folder=Path.cwd(), allow_control=allow_control)
    if allow_control and not served.controls:
        click.echo("wk: agents may not control runs; this server is read-only", err=True)
    if http:
        return _serve_http(served, port)
    if sys.stdin.isatty():
        click.echo("wk: waiting for an MCP client; `wk mcp install claude` adds this server to one", err=True)
    asyncio.run(_serve_stdio(served))
    return 0


async def _serve_stdio(served: SessionServer) -> None:
    from mcp.server.stdio import stdio_server

    from watchkeeper.interop.mcp import mcp_server

    server = mcp_server(served)
    gc.freeze()  # what is loaded lasts: looking through it would make one call in some hundred take 0.1 s
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _serve_http(served: SessionServer, port: int) -> int:
    import uvicorn

    token = os.environ.pop(TOKEN_VARIABLE, "") or new_token()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise BadInput(f"{TOKEN_VARIABLE} must be at least {SHORTEST_TOKEN} printable ASCII characters")
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError as error:
        raise BadInput(
            f"cannot listen on 127.0.0.1:{port} ({reason_of(error)}); choose another --port"
        ) from None
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda *_: sys.exit(0)
        )  # uvicorn raises a signal again at its end; the file goes first
    with ExitStack() as ending:
        ending.callback(listening.close)
        click.echo(f"MCP at {url} · Authorization: Bearer {token} · Ctrl+C stops it")
        folder = database.user_data_place().parent / "listeners"
        try:
            place = ending.enter_context(token_file(folder, "mcp", url, token))
            click.echo(f"address and token are also in {place}, which only you can read")
        except OSError as error:
            click.echo(f"wk: could not write the address and token to a file ({reason_of(error)})", err=True)
        sys.stdout.flush()
        config = uvicorn.Config(
            guarded_app(served, Guard(token, loopback_only=True)), log_level="critical", access_log=False, lifespan="on",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        gc.freeze()
        uvicorn.Server(config).run([listening])
    return 0


def guarded_app(served: SessionServer, guard: Guard) -> Any:
    """The server as an ASGI application. Each request needs the token; other hosts and origins are refused."""
    from starlette.responses import JSONResponse
    from starlette.types import Receive, Scope, Send

    from watchkeeper.interop.mcp import mcp_server

    inner = mcp_server(served).streamable_http_app(stateless_http=True, json_response=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            given = headers.get(b"authorization", "").partition(" ")
            token = given[2].strip() if given[0].casefold() == "bearer" else ""
            decision = guard.decide(Request(headers.get(b"host", ""), headers.get(b"origin"), token=token))
            if isinstance(decision, Refused):
                await asyncio.sleep(decision.delay_seconds)
                await JSONResponse({"error": decision.reason}, status_code=401)(scope, receive, send)
                return
        await inner(scope, receive, send)

    return app


@mcp.command(
    examples=("wk mcp install claude # show what would be added", "wk mcp install claude --write # add it")
)
@click.argument("program", type=click.Choice(clients.PROGRAMS))
@click.option(
    "--write", is_flag=True, help="Add it to the program's configuration and keep a copy of the file."
)
@_control
@db_option
@json_option
def install(program: str, write: bool, allow_control: bool, db: Place | None, as_json: bool) -> int:
    """Print the configuration that adds this server to PROGRAM.

    With --write, the command writes it. The entry names the current database. The rest of the file is not changed,
    including comments. A damaged file is refused.
    """
    place = database_path(db)
    if isinstance(place, DatabaseUrl) and place.holds_password:
        raise BadInput(
            f"{place} contains a password. Passwords are not written to configuration files; move it to ~/.pgpass"
        )
    command = [*_command(), "--db", str(place)]
    if allow_control:
        command.append("--allow-control")
    entry = clients.entry(program, command, os.environ, Path.home())
    if not write:
        value = {
            "program": program,
            "path": str(entry.path),
            "configuration": entry.shown(),
            "written": False,
        }
        return respond(
            as_json, value, [f"add this to {clean(entry.path)}, or use --write:", "", entry.shown().rstrip()]
        )
    done = clients.write(entry)
    value = {
        "program": program, "path": str(done.path), "written": done.changed,
        "backup": str(done.backup) if done.backup else None,
    }  # fmt: skip
    kept = f"; backup: {clean(done.backup)}" if done.backup else ""
    said = f"added to {clean(done.path)}{kept}" if done.changed else f"already in {clean(done.path)}"
    return respond(as_json, value, said)


@mcp.command(
    examples=("wk mcp uninstall claude # remove the entry", "wk mcp uninstall codex --json # for a script")
)
@click.argument("program", type=click.Choice(clients.PROGRAMS))
@click.option("--write", is_flag=True, hidden=True, help="No effect: the file is always written.")
@json_option
def uninstall(program: str, write: bool, as_json: bool) -> int:
    """Remove this server from the configuration of PROGRAM.

    A copy of the file is kept. The rest of the file is not changed, including comments. A damaged file is refused.
    """
    done = clients.remove(clients.entry(program, _command(), os.environ, Path.home()))
    value = {
        "program": program, "path": str(done.path), "removed": done.changed,
        "backup": str(done.backup) if done.backup else None,
    }  # fmt: skip
    kept = f"; backup: {clean(done.backup)}" if done.backup else ""
    said = f"removed from {clean(done.path)}{kept}" if done.changed else f"not in {clean(done.path)}"
    return respond(as_json, value, said)


def _command() -> list[str]:
    """How a program starts this installation's server, whatever its PATH."""
    beside = Path(sys.executable).parent / "wk"
    script = str(beside) if beside.exists() else shutil.which("wk")
    return [script, "mcp"] if script else [sys.executable, "-P", "-m", "watchkeeper", "mcp"]


# --- Hooks ----------------------------------------------------------------------------------------------

_project = click.option(
    "--project", type=click.Path(path_type=Path, file_okay=False), help="Only for sessions in this folder."
)
_yes = click.option("--yes", is_flag=True, help="Do not ask before changing the file.")
_program = click.argument("program", type=click.Choice(["claude", "codex", "opencode"]))


@click.group(
    cls=Group,
    examples=(
        "wk hooks install claude # show the change, then ask",
        "wk hooks status # sessions in other terminals",
    ),
)
def hooks() -> None:
    """Show live sessions of Claude Code, Codex and OpenCode in other terminals, and answer their questions.

    A hook is a shell command that a program runs on an event. These hooks only write the event to a file. They do not
    run Watchkeeper, do not store the environment, and never block the program when no answer can come. For OpenCode, a
    plugin does the same.
    """


def _file(db: Place | None) -> Path:
    return file_of(database_path(db), "reading hooks", "choose a file with --db")


@hooks.command(
    "install",
    examples=(
        "wk hooks install claude # show sessions live",
        "wk hooks install claude --answer # also answer its questions here",
    ),
)
@_program
@click.option("--answer", is_flag=True, help="Also let `wk approve` and the dashboard answer its questions.")
@_project
@click.option(
    "--binary",
    type=click.Path(path_type=Path, exists=True),
    help="Path of the program (default: from PATH).",
)
@_yes
@db_option
def install_hooks(
    program: str, answer: bool, project: Path | None, binary: Path | None, yes: bool, db: Place | None
) -> int:
    """Add hooks to your settings of an agent program.

    OpenCode gets a plugin instead. The command shows the change, asks for confirmation, and keeps a backup. If `[guard]`
    sets a cap, a hook also denies new agents to a session that has reached it.
    """
    from watchkeeper.interop import hooks as doors
    from watchkeeper.runtime.config import load_config

    refuse_agents()
    path = _file(db)
    if answer and program == "codex":
        raise BadInput(
            "Codex questions can be answered only in Codex's terminal; --answer works with claude and opencode"
        )
    if program == "opencode":
        found = doors.Program(
            doors.find_version(os.environ, program, doors.FIRST_OPENCODE, binary),
            doors.OPENCODE_EVENTS,
            program,
        )
        settings = doors.opencode_settings(os.environ, project)
        change = doors.plan_opencode_install(path, settings, found, answer=answer)
    else:
        settings = doors.settings_of(os.environ, project, program)
        found = (doors.find_codex if program == "codex" else doors.find_program)(os.environ, binary)
        if load_config().guard.caps:
            found = found._replace(events=(*found.events, doors.GUARDING))
        change = doors.plan_install(path, settings, found, answer=answer)
    assert change.record is not None
    if not change.is_needed:
        doors.install(path, settings, change)
        say(f"the hooks are already in {settings.path}")
        return 0
    click.echo(reveal(change.diff()), nl=False)
    left_out = [event for event in doors.EVENTS if event not in change.record.events]
    if left_out and program == "claude":
        which = f"Claude Code {found.version}" if found.version else "old versions (no `claude` on PATH)"
        say(f"omitted, not supported by {clean(which)}: {', '.join(left_out)}")
    if answer and not change.record.answers:
        say("answering is not available: this version of Claude Code has no PermissionRequest hook")
    if change.note:
        say(f"note: {change.note}")
    _ask(yes, settings.path)
    doors.install(path, settings, change)
    soon = {
        "claude": "running sessions use them immediately",
        "codex": "start codex once and trust the hooks",
        "opencode": "new sessions use it",
    }
    what = "the plugin" if program == "opencode" else f"{len(change.record.events)} hooks"
    say(f"installed {what}; {soon[program]}")
    if not external.is_read(path):
        say(
            "no process is reading their events yet; run `wk import --watch-all --install` (background) or `wk watch claude`"
        )
    return 0


@hooks.command(
    "uninstall",
    examples=(
        "wk hooks uninstall claude # remove the hooks",
        "wk hooks uninstall codex --yes # without asking",
    ),
)
@_program
@_project
@_yes
@db_option
def uninstall_hooks(program: str, project: Path | None, yes: bool, db: Place | None) -> int:
    """Remove the hooks. If the file has not changed since, it is restored byte for byte."""
    from watchkeeper.interop import hooks as doors

    refuse_agents()
    path = _file(db)
    if program == "opencode":
        settings = doors.opencode_settings(os.environ, project)
        change = doors.plan_opencode_uninstall(path, settings.path)
    else:
        settings = doors.settings_of(os.environ, project, program)
        change = doors.plan_uninstall(path, settings.path)
    click.echo(reveal(change.diff()), nl=False)
    if change.note:
        say(f"note: {change.note}")
    _ask(yes, settings.path)
    doors.uninstall(path, change)
    say(
        f"deleted {settings.path}, which the installation had created"
        if change.after is None
        else f"restored {settings.path}"
    )
    return 0


def _ask(yes: bool, path: Path) -> None:
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"nothing changed; add --yes to change {path} without asking")
    click.confirm(f"Change {path}?", abort=True)


@hooks.command(
    examples=("wk hooks status # installed hooks, pending questions", "wk hooks status --json # for a script")
)
@db_option
@json_option
def status(db: Place | None, as_json: bool) -> int:
    """Show hooks, other terminals and pending questions."""
    from watchkeeper.interop import hooks as doors

    path = _file(db)
    folder = external.hooks_folder(path)
    installed = [
        {
            "settings": each.path,
            "events": each.events,
            "answers": each.answers,
            "guards": doors.GUARDING in each.events,
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
        as_json, value, _status_lines(value, found), empty="no hooks installed; run wk hooks install claude"
    )


def _status_lines(value: dict[str, Any], found: external.External) -> Iterator[str]:
    for each in value["installed"]:
        state = "" if each["registered"] else "; some are missing from the file; reinstall the hooks"
        answers = ", answers questions" if each["answers"] else ""
        guards = ", blocks new agents at a cap" if each["guards"] else ""
        yield f"{clean(each['settings'])}: {len(each['events'])} hooks{answers}{guards}{state}"
    if value["installed"] and not value["read"]:
        yield f"no process is reading their events ({value['pending']} waiting); run wk import --watch-all or wk watch claude"
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


@hooks.command(
    examples=(
        'wk hooks instructions 95d6 "Keep the file names" # what to keep',
        "wk hooks instructions 95d6 # remove them",
    )
)
@click.argument("session", metavar="SESSION")
@click.argument("text", default="")
@db_option
def instructions(session: str, text: str, db: Place | None) -> int:
    """Set compaction instructions for SESSION.

    Without TEXT, the command removes them. SESSION is the id in Claude Code or in Watchkeeper; a unique prefix is enough.
    At each compaction, the text is added to the program's own instructions.
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
            f"{len(found) or 'no'} live sessions in other terminals match {clean(session, 80)}; see wk hooks status"
        )
    external.set_compact_instructions(path, found.pop(), text)
    say("instructions set for the next compactions" if text.strip() else "instructions removed")
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
        raise BadInput(f"{words[0]!r} is ambiguous: {', '.join(each.id[:12] for each in found)}")
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
                f"pass --choose once for each of the {len(question.choices)} questions; see --show"
            )
        choices = {
            str(place): _label(one, text)
            for place, (one, text) in enumerate(zip(question.choices, chosen, strict=True))
        }
    elif chosen:
        raise BadInput("--choose is only for multiple-choice questions")
    try:
        external.answer_question(
            path, question, user_name(), allow=allow, reason=reason or "", choices=choices
        )
    except ValueError as fault:
        raise BadInput(str(fault)) from None
    said = "sent; `wk hooks status` shows whether the session received it"
    return respond(as_json, {"status": "sent", "question": question.id}, said)


def _label(question: dict[str, Any], typed: str) -> str:
    """The label of the option with that number, or the text itself."""
    options = [str(one.get("label", "")) for one in question.get("options", ()) if isinstance(one, dict)]
    return options[int(typed) - 1] if typed.isdigit() and 0 < int(typed) <= len(options) else typed


def question_lines(question: external.ExternalQuestion) -> Iterator[str]:
    """A whole question, and how to answer it. Whatever a terminal would obey or hide is made visible."""
    import json

    yield f"{question.program} in another terminal (process {question.pid}) wants to use: {reveal(question.tool)}"
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
