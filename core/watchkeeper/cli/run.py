"""`wk demo`, `wk run` and `wk resume`: start a session, or continue one.

Before a session starts, its model is chosen (`models`). No model that a workspace chooses makes the run cost more unless
the user confirms it. A session that a budget has paused gets a new limit before it is resumed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli.help import Command, say_renamed
from watchkeeper.cli.models import ChosenModel, choose_model, local_url
from watchkeeper.cli.options import (
    ACTS,
    F,
    SessionHandle,
    clean,
    complete_model,
    complete_session,
    database_path,
    db_option,
    explains_last,
    find_session,
    is_terminal,
    json_option,
    open_for_control,
    respond,
    say,
)
from watchkeeper.models.registry import (
    SURVEYOR,
)
from watchkeeper.records import proc
from watchkeeper.records.errors import BadInput, NotFound, WatchkeeperError
from watchkeeper.records.messages import EFFORTS, Effort
from watchkeeper.records.ports import random_id
from watchkeeper.records.sandboxes import OFF, SANDBOXES
from watchkeeper.records.text import json_text
from watchkeeper.store import agents, budgets, sessions, state
from watchkeeper.store.budgets import BudgetUse
from watchkeeper.store.place import Place
from watchkeeper.store.workers import Needs, check_label

if TYPE_CHECKING:
    from watchkeeper.agents.tools.workers import WorkerPool
    from watchkeeper.runtime.config import Config, RoleModel
    from watchkeeper.runtime.lifecycle import Continuation
    from watchkeeper.store.lease import LeaseHolder


MOST_ROLES = 5
"""How many roles one question or warning names."""


def confirm_roles(
    workspace: Path, ref: str, allowed: Sequence[str], *, may_ask: bool, show: bool
) -> tuple[str, ...]:
    """Ask about roles of the workspace that want a model that costs more, beyond what `allowed` names.

    Returns the models that the user confirmed, as `SessionSettings.allow_models` holds them. Without `may_ask`
    none is confirmed, and a warning names the model that each such role runs on. `show`: print role, source and
    model of each role that is not built in.
    """
    from watchkeeper.agents.roles import load_roles
    from watchkeeper.runtime.config import BUILT_IN, price_of, role_models, warning
    from watchkeeper.store.place import config_folder

    roles = load_roles(workspace, config_folder())
    dearer: dict[tuple[str, str], list[RoleModel]] = {}
    for choice in role_models(roles, ref, allowed).values():
        if choice.unconfirmed is not None:
            dearer.setdefault((choice.unconfirmed, choice.own), []).append(choice)
    confirmed: list[str] = []
    for (wanted, own), choices in dearer.items():
        if not may_ask:
            for choice in choices[:MOST_ROLES]:
                click.echo(f"wk: {clean(warning(choice), 600)}", err=True)
            continue
        named = ", ".join(f"{one.role} ({one.source})" for one in choices[:MOST_ROLES])
        more = f" and {len(choices) - MOST_ROLES} more" if len(choices) > MOST_ROLES else ""
        click.echo(
            "wk: this workspace requests a model that costs more than yours, for the role"
            f" {clean(named, 600)}{more}:",
            err=True,
        )
        click.echo(f"  requested  {clean(wanted, 120)}: {price_of(wanted)}", err=True)
        click.echo(f"  yours      {clean(own, 120)}: {price_of(own)}", err=True)
        if click.confirm("Use the requested model", default=False, err=True):
            confirmed += [f"{one.role}={wanted}" for one in choices]
    if show:
        for choice in role_models(roles, ref, (*allowed, *confirmed)).values():
            if choice.source != BUILT_IN:
                say(
                    f"role {clean(choice.role, 40)}  {clean(choice.source, 80)}  {clean(choice.model, 80)} "
                    f" {price_of(choice.model)}"
                )
    return tuple(confirmed)


def may_ask(*, as_json: bool) -> bool:
    """Whether input and output are a terminal, so that the user can answer a question."""
    return not as_json and sys.stdin.isatty() and sys.stdout.isatty()


# New limits for a session that a budget has paused.

PAUSED_EXIT = 5

_HELP = {
    "usd": "New limit in USD: an amount, or +N to add N.",
    "tokens": "New limit in tokens, including cache reads (5000 or +5000).",
    "turns": "New maximum number of model replies.",
    "seconds": "New limit on run time, in seconds.",
}


def new_budget_options(function: Any) -> Any:
    """The options `--budget-usd`, `--budget-tokens` and so on of a command that resumes."""
    for kind in reversed(budgets.KINDS):
        function = click.option(f"--budget-{kind}", metavar="AMOUNT|+N", help=_HELP[kind])(function)
    return function


def typed_budgets(options: dict[str, Any]) -> dict[str, Any]:
    """The budget options that were given: kind → text."""
    return {
        kind: options[f"budget_{kind}"] for kind in budgets.KINDS if options.get(f"budget_{kind}") is not None
    }


def limits_meant(opened: SessionHandle, kind: str, text: str) -> list[tuple[str | None, float]]:
    """The task (None: the session) and the amount of each limit that `--budget-KIND TEXT` changes.

    These are the reached budgets of that kind, or else the session's.

    Raises:
        BadInput: the text is not an amount, or the amount is not more than what is used.
    """
    reached = [
        use for use in budgets.usage(opened, opened.session_id) if use.is_reached and use.budget.kind == kind
    ]
    owners = [use.budget.task_id for use in reached] or [None]
    try:
        return [(owner, budgets.amount_of(opened, opened.session_id, owner, kind, text)) for owner in owners]
    except ValueError as refused:
        raise BadInput(f"--budget-{kind}: {clean(refused)}") from None


def set_limits(opened: SessionHandle, typed: dict[str, str]) -> None:
    """Set new limits of a session that no host runs. All are checked before the first is written.

    Raises:
        BadInput: an amount is refused; nothing was changed.
    """
    from watchkeeper.runtime.run_session import set_budget_without_host

    meant = {kind: limits_meant(opened, kind, text) for kind, text in typed.items()}
    for kind, limits in meant.items():
        for task_id, amount in limits:
            set_budget_without_host(opened.path, opened.session_id, task_id, kind, amount)


def raise_reached(opened: SessionHandle, typed: dict[str, str], *, ask: bool, as_json: bool) -> bool:
    """Set the limits that were given; returns whether the session can now continue.

    With `ask`, each budget that is still reached is shown with its use, and a new limit is asked for. If the
    session must stay paused, the next command is printed.

    Raises:
        BadInput: an amount that was given is refused.
    """
    set_limits(opened, typed)
    while (blocking := budgets.blocking(opened, opened.session_id)) and ask:
        if not _ask_limit(opened, blocking[0]):
            break
    if blocking:
        _advise(opened, blocking, as_json=as_json)
    return not blocking


def _ask_limit(opened: SessionHandle, use: BudgetUse) -> bool:
    """Ask until a new limit is set; False if the user declines."""
    from watchkeeper.runtime.run_session import set_budget_without_host

    kind, owner = use.budget.kind, use.budget.task_id
    click.echo(clean(use.describe()))
    while True:
        default = f"+{budgets.plain_amount(use.shortfall, kind)}"
        try:
            typed = click.prompt(
                f"New budget in {budgets.UNITS[kind]} (an amount or +N; q to stay paused)", default=default
            )
        except click.Abort:
            click.echo("")
            return False
        if typed.strip().lower() in ("q", "n", "no"):
            return False
        try:
            amount = budgets.raised_amount(opened, opened.session_id, use, typed)
        except ValueError as refused:
            click.echo(clean(refused))
            continue
        set_budget_without_host(opened.path, opened.session_id, owner, kind, amount)
        return True


def _advise(opened: SessionHandle, blocking: list[BudgetUse], *, as_json: bool) -> None:
    next_command = budgets.resume_command(opened.session_id, blocking)
    if not as_json:
        say(f"session {opened.session_id} was not resumed: a budget is used up")
        for use in blocking:
            say(f"  {clean(use.describe())}")
        say(f"  to raise it: {next_command}")
        return
    result = state.result(opened, opened.session_id)
    result["reached_budgets"] = [
        {
            "task": use.task_name,
            "project": None,
            "kind": use.budget.kind,
            "used": use.used,
            "amount": use.budget.amount,
            "required": use.budget.required,
        }
        for use in blocking
    ]
    result["next"] = next_command
    say(json_text(result))


SURVEY_GOAL = "Survey this folder: count its files and their bytes, by extension."


def _speed(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    if value == "max":
        return None
    try:
        speed = float(value)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e6:
        raise click.BadParameter("give a positive number, or max")
    return speed


approval_timeout_option = click.option(
    "--approval-timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Deny a question that is not answered within this time (headless: 0, unless a dashboard is open).",
)


def _project(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise BadInput(
            "--project: project budgets are no longer supported; use --budget-usd or --budget-tokens. `wk budget"
            " --project NAME --remove` deletes a stored one"
        )


_foreground_options = (
    click.option(
        "--headless", is_flag=True, help="Run in the foreground and print progress, without the dashboard."
    ),
    approval_timeout_option,
)
_permission_options = (
    click.option(
        "--allow", multiple=True, metavar="TOOL",
        help="Let a tool run without asking (repeatable). 'write:GLOB' allows writes to matching paths.",
    ),
    click.option("--deny", multiple=True, metavar="TOOL", help="Never let a tool run (repeatable)."),
    click.option(
        "--sandbox", type=click.Choice(SANDBOXES),
        help="Confine bash: it can write only to the workspace and cannot read credentials (default: [sandbox] in the configuration).",
    ),
)  # fmt: skip


def _speed_option(*, hidden: bool = False) -> Callable[[F], F]:
    return click.option(
        "--speed", callback=_speed, default="1", metavar="X|max", hidden=hidden,
        help="Speed of the surveyor: 1 = like a model, max = no delay.",
    )  # fmt: skip


def session_options(function: Any) -> Any:
    """The options of every new session."""
    for option in reversed(
        [
            click.option("--workspace", type=click.Path(path_type=Path), help="The folder to work in (default: the current folder)."),
            click.option("--max-parallel", type=click.IntRange(1, 256), help="Maximum number of sub-agents that run at the same time."),
            click.option("--context-tokens", type=click.IntRange(2_000), help="Use a smaller context window than the model's."),
            click.option(
                "--memory", type=click.Choice(("summary", "observational")),
                help="How to compact older messages (default: memory in the configuration).",
            ),
            click.option("--budget-usd", type=click.FloatRange(0, min_open=True), help="Pause when this cost is reached."),
            click.option("--budget-tokens", type=click.IntRange(1), help="Pause after this many tokens, including cache reads."),
            click.option("--budget-turns", type=click.IntRange(1), help="Pause after this many model replies."),
            click.option("--budget-seconds", type=click.FloatRange(0, min_open=True), help="Pause after this much run time."),
            click.option("--project", callback=_project, expose_value=False, hidden=True),
            *_permission_options,
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def foreground_options(function: Any) -> Any:
    """The options of a command that may run a session in the foreground."""
    for option in reversed([db_option, json_option, *_foreground_options]):
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=(
        "wk demo # watch agents survey this folder",
        "wk demo --headless --workspace src # print progress instead",
    ),
)
@foreground_options
@session_options
@_speed_option()
def demo(**options: Any) -> int:
    """Survey a folder with the offline surveyor: real files, real tools, no key and no network.

    The surveyor is a script, not a language model, but it uses the same protocol. You can kill it at any time:
    `wk resume last` continues. `wk artifacts last SURVEY.md` prints the result.
    """
    from watchkeeper.runtime.lifecycle import check_workspace

    if options["workspace"] is None:
        try:
            check_workspace(Path.cwd(), database_path(options["db"]))
        except BadInput:  # the home folder holds the database, and a first trial is often made there
            options["workspace"] = Path(__file__).resolve().parents[1]
            where = "surveying Watchkeeper's own files; --workspace surveys another folder"
            click.echo(f"wk: this folder contains the database: {where}", err=True)
    return start(SURVEY_GOAL, SURVEYOR, options)


def labels(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Labels of workers that are valid."""
    return tuple(check_label(label) for label in value)


def placement_options(function: Any, *, hidden: bool = False) -> Any:
    """What a queued session says about the worker that is to run it."""
    for option in reversed(
        [
            click.option(
                "--on", "on", multiple=True, metavar="LABEL", callback=labels, hidden=hidden,
                help="A label that the worker must have (repeatable; default: this machine's).",
            ),
            click.option(
                "--git", "remote", metavar="REMOTE", hidden=hidden,
                help="The worker checks out a commit from this remote instead of using --workspace.",
            ),
            click.option("--commit", hidden=hidden, help="With --git: the commit (default: HEAD of the workspace)."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def _efforts(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, Effort]:
    """Role (`ALL_ROLES` for all) → effort, from `EFFORT` and `ROLE=EFFORT`."""
    from watchkeeper.runtime.config import ALL_ROLES

    found: dict[str, Effort] = {}
    for text in value:
        role, _, named = text.rpartition("=")
        effort = next((one for one in EFFORTS if one == named.strip().lower()), None)
        if effort is None:
            raise click.BadParameter(
                f"{clean(named, 40)!r} is not a valid effort; use one of {', '.join(EFFORTS)}"
            )
        found[role.strip() or ALL_ROLES] = effort
    return found


MOST_RULES_BYTES = 32_000
"""The largest file of rules that is read. What fits into a prompt is checked later."""


def _rules(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """The rules that were given: each text, and each line of a file."""
    rules: list[str] = []
    for text in value:
        if not text.startswith("@"):
            rules.append(text)
            continue
        try:
            with Path(text[1:]).expanduser().open("rb") as file:
                lines = file.read(MOST_RULES_BYTES + 1).decode().splitlines()
        except (OSError, ValueError) as error:
            reason = "not UTF-8 text" if isinstance(error, ValueError) else error.strerror or str(error)
            raise click.BadParameter(f"cannot read {clean(text[1:], 200)}: {clean(reason, 200)}") from None
        rules += [re.sub(r"^[-*] ", "", line.strip()) for line in lines if line.strip()]
    return tuple(rules)


rules_option = click.option(
    "--rules",
    multiple=True,
    metavar="TEXT|@FILE",
    callback=_rules,
    help="A rule for every agent in the session, or a file with one rule per line (repeatable).",
)
allow_model_option = click.option(
    "--allow-model",
    "allow_models",
    multiple=True,
    metavar="REF",
    help="Let workspace roles and the planner use this model even if it costs more than yours."
    " 'anthropic/*' allows all models of a provider (repeatable).",
)


def goal_options(function: Any) -> Any:
    """GOAL, and the options about the work and its models."""
    for option in reversed(
        [
            click.argument("goal", required=False),
            click.option(
                "--from", "from_session", metavar="SESSION", shell_complete=complete_session,
                help="Continue the work of SESSION (a Watchkeeper run or imported) with its plan and facts. GOAL is then optional."
                " `last` is the most recently active session.",
            ),
            click.option(
                "--model", metavar="REF", shell_complete=complete_model,
                help="anthropic/<model>, openai/<model>, openai-chat/<model>, or offline/surveyor (default: from the"
                " configuration).",
            ),
            click.option(
                "--base-url", metavar="URL", callback=local_url,
                help="With --model: a server on this machine, such as http://127.0.0.1:11434. No key is sent.",
            ),
            click.option(
                "--effort", "efforts", multiple=True, metavar="EFFORT|ROLE=EFFORT", callback=_efforts,
                help="Reasoning effort: off, low, medium, high, xhigh or max, for all roles or one (repeatable; default:"
                " the configuration or the model's default). A model without that level uses the nearest one.",
            ),
            rules_option,
            allow_model_option,
            _speed_option(hidden=True),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def _earlier_options(function: Any) -> Any:
    """Options that are now options of `wk worker queue` and `wk resume --program`; they still work."""
    for option in reversed(
        [
            click.option("--queue", "queued", is_flag=True, hidden=True),
            click.option("--agent", hidden=True),
            click.option("--continue", "thread", hidden=True),
            click.option("--yes", is_flag=True, hidden=True),
        ]
    ):
        function = option(function)
    return placement_options(function, hidden=True)


@click.command(
    cls=Command,
    examples=(
        'wk run "Fix the failing tests" # start, and open the dashboard',
        'wk run --headless --budget-usd 2 "Fix them" # pause at $2',
    ),
)
@goal_options
@click.option("--detach", is_flag=True, help="Start in the background and return, without the dashboard.")
@foreground_options
@session_options
@_earlier_options
def run(
    goal: str | None,
    from_session: str | None,
    model: str | None,
    agent: str | None,
    thread: str | None,
    yes: bool,
    **options: Any,
) -> int:
    """Start a session towards GOAL: a planner makes a plan, and sub-agents work on its tasks.

    In a terminal, the session runs in a background process (the host) and the dashboard opens. The session keeps
    running when you quit the dashboard. With --headless, or without a terminal, it runs in the foreground.

    Without --model and without `model` in the configuration, the command asks which model to use. Without a terminal
    or a usable model, it fails. `wk worker queue` leaves the work to another machine. `wk resume --program` continues a session of
    another program.
    """
    if agent is not None and thread is not None and goal is not None:
        say_renamed("run --agent PROGRAM --continue THREAD", "resume --program PROGRAM THREAD MESSAGE")
        return _continue_outside(agent, thread, goal, model, options, yes=yes)
    if agent is not None or thread is not None:
        raise click.UsageError(
            "to continue a session from another program, use: wk resume --program PROGRAM THREAD MESSAGE"
        )
    if options["queued"]:
        say_renamed("run --queue", "worker queue")
    return start(goal, model, options, from_session)


def _continue_outside(
    program: str, thread: str, message: str, model: str | None, options: dict[str, Any], *, yes: bool
) -> int:
    """Continue a session of another program, which becomes a sub-agent of a new session."""
    return start(message, model, options, outside=_outside(program, thread, options, yes))


SECONDS_AT_REST = 60.0
"""A session that another process has written to more recently is not taken over."""


def _outside(agent: str, thread: str, options: dict[str, Any], yes: bool) -> dict[str, str]:
    """The session of another program that is to be continued. The workspace becomes its folder.

    Raises:
        BadInput: it is not known, or something else may be using it.
    """
    from watchkeeper.agents.backends.programs import load_programs
    from watchkeeper.runtime.config import load_config
    from watchkeeper.transcripts.reading import by_name, find_sessions

    program = load_programs(load_config().agents).get({"claude": "claude-code"}.get(agent, agent))
    reader = by_name(program.reader) if program is not None and program.reader else None
    if program is None or reader is None:
        raise BadInput(
            f"cannot continue sessions from {clean(agent, 60)!r}; use codex, claude-code or opencode"
        )
    environ = program.environment(os.environ, "")
    try:
        found = find_sessions(reader, thread, environ, Path(environ.get("HOME") or Path.home()))
    except OSError as error:
        raise BadInput(f"cannot read the sessions of {program.label}: {error}") from None
    if len(found) != 1:
        named = ", ".join(clean(one.session, 60) for one in found[:5])
        what = (
            f"matches several sessions: {named}"
            if found
            else "does not match any session; specify an id or a file"
        )
        raise BadInput(f"{program.label}: {clean(thread, 200)} {what}")
    one = found[0]
    if not one.folder or not Path(one.folder).is_dir():
        raise BadInput(f"the session folder does not exist: {clean(one.folder or 'unknown', 300)}")
    if (
        options["workspace"] is not None
        and options["workspace"].expanduser().resolve() != Path(one.folder).resolve()
    ):
        raise BadInput(f"the session's workspace is {clean(one.folder, 300)}; omit --workspace")
    options["workspace"] = Path(one.folder)
    _refuse_worked_on(database_path(options["db"]), one.session)
    if (holder := _holder(one.path, one.session)) is not None:
        raise BadInput(f"process {holder} is using the session; end it first")
    if program.name != "codex":  # which refuses a second holder itself
        seconds = time.time() - one.changed_at
        if seconds < SECONDS_AT_REST:
            raise BadInput(
                f"the session changed {max(seconds, 0):.0f} s ago and may be in use; close it and wait a minute"
            )
        warning = (
            f"{program.label} lets two programs write to one session, which can lose work. Close the session "
            "everywhere else"
        )
        if not yes and not may_ask(as_json=bool(options["as_json"])):
            raise BadInput(f"{warning}, then pass --yes")
        if not yes and not click.confirm(f"{warning}. Continue?", default=False, err=True):
            raise click.Abort
    return {
        "program": program.name, "session": one.session, "transcript": str(one.path.resolve()), "folder": one.folder,
        "model": f"{program.name}/default",
    }  # fmt: skip


def _refuse_worked_on(path: Place, program_session: str) -> None:
    """Two agents never work on one session of a program."""
    from watchkeeper.store import database

    if not database.is_there(path):
        return
    opened = SessionHandle(path)
    found = agents.at_work_on(opened, program_session)
    if found is not None:
        raise BadInput(f"agent {clean(found[0], 60)} of session {found[1]} is already working on it")


def _holder(path: Place, program_session: str) -> int | None:
    """A process that has the file open, or names the session in its command; not this one and those that started it."""
    own = {os.getpid(), *proc.parents_of(os.getpid())}
    beside = {str(path.resolve()) + end for end in ("", "-wal", "-shm")} if isinstance(path, Path) else set()
    for pid in proc.processes():
        if pid not in own and (
            program_session.encode() in proc.file_of(pid, "cmdline")
            or any(one in beside for one in proc.open_files_of(pid))
        ):
            return pid
    return None


def _for_programs(function: Any) -> Any:
    """Options of `wk resume --program`."""
    for option in reversed(
        [
            click.option("--model", metavar="REF", shell_complete=complete_model, help="With --program: the planner's model."),
            click.option("--allow", multiple=True, metavar="TOOL", help="With --program: same as for `wk run`."),
            click.option("--deny", multiple=True, metavar="TOOL", help="With --program: same as for `wk run`."),
            click.option("--sandbox", type=click.Choice(SANDBOXES), help="With --program: same as for `wk run`."),
            click.option("--yes", is_flag=True, help="With --program: skip the in-use check."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=(
        "wk resume last # continue the newest run",
        "wk resume last --budget-usd +2 # allow two more dollars",
    ),
)
@click.argument("session", metavar="SESSION", shell_complete=complete_session)
@click.argument("agent", required=False, metavar="[AGENT|MESSAGE]")
@foreground_options
@click.option("--detach", is_flag=True, help="Continue in the background and return.")
@click.option("--queue", "queued", is_flag=True, help="Queue it for a worker and return.")
@allow_model_option
@new_budget_options
@click.option(
    "--program",
    metavar="PROGRAM",
    help="Continue a session that was started in codex, claude-code or opencode. SESSION is its id, a unique prefix or"
    " its file; MESSAGE is the next message.",
)
@_for_programs
@explains_last(ACTS)
def resume(
    session: str,
    agent: str | None,
    db: Place | None,
    as_json: bool,
    headless: bool,
    detach: bool,
    queued: bool,
    approval_timeout: float | None,
    allow_models: tuple[str, ...],
    program: str | None,
    model: str | None,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    sandbox: str | None,
    yes: bool,
    **limits: str | None,
) -> int:
    """Continue SESSION from the last saved step, with its plan, queue and every agent's memory. With AGENT,
    resume only that agent.

    If a budget is used up, the command shows the usage and asks for a new limit. Without a terminal, give one: `wk
    resume last --budget-usd +2`. If the background process is about to end, for example after `wk pause`, the command
    waits up to 30 s.
    """
    from watchkeeper.runtime.control import FINAL, check_configuration, check_resume, nothing_to_resume
    from watchkeeper.runtime.lifecycle import SessionSettings
    from watchkeeper.runtime.run_session import allow_more_models

    typed = typed_budgets(limits)
    if program is not None:
        if agent is None or not agent.strip():
            raise click.UsageError(
                "--program requires the next message: wk resume --program PROGRAM THREAD MESSAGE"
            )
        if queued:
            raise BadInput("a session from another program can continue only on this machine; omit --queue")
        options = {
            "db": db, "as_json": as_json, "headless": headless, "detach": detach, "approval_timeout": approval_timeout,
            "allow_models": allow_models, "allow": allow, "deny": deny, "sandbox": sandbox, "workspace": None,
            "max_parallel": None, "context_tokens": None, "memory": None, "speed": 1.0,
            **{f"budget_{kind}": _first_limit(kind, text) for kind, text in typed.items()},
        }  # fmt: skip
        return _continue_outside(program, session, agent, model, options, yes=yes)
    if model or allow or deny or sandbox or yes:
        raise BadInput("--model, --allow, --deny, --sandbox and --yes need --program")
    opened = open_for_control(db, session)
    if agent is not None:
        from watchkeeper.cli.control import command

        if typed:
            raise BadInput("an agent has no budget; set one for the session or a task with `wk budget`")
        return command(opened, "resume", as_json, agent_id=opened.agent(agent))
    _await_others(opened)
    status = opened.status
    if status in FINAL:
        from watchkeeper.cli.headless import print_result

        click.echo(f"wk: {nothing_to_resume(opened.session_id, status)}", err=True)
        if as_json:
            print_result(opened.path, opened.session_id, as_json=True)
        return 0 if status == "done" else 1
    stored = sessions.require(opened, opened.session_id)
    workspace = Path(stored.workspace)
    if queued:
        return _resume_queued(opened, typed, as_json=as_json)
    check_configuration(workspace)
    check_resume(opened.path, opened.session_id, environment="this shell")
    allowed = (*SessionSettings.load(stored.settings).allow_models, *allow_models)
    asking = may_ask(as_json=as_json)
    confirmed = confirm_roles(workspace, stored.model, allowed, may_ask=asking, show=headless and not as_json)
    if allow_models or confirmed:
        allow_more_models(opened.path, opened.session_id, (*allow_models, *confirmed))
    foreground = headless or as_json or not is_terminal()
    if not raise_reached(opened, typed, ask=is_terminal() and not as_json, as_json=as_json):
        return PAUSED_EXIT
    return _drive(
        opened.path, opened.session_id, foreground, as_json, resume=True, detach=detach,
        approval_timeout_seconds=approval_timeout,
    )  # fmt: skip


def _first_limit(kind: str, text: str) -> float:
    """The first budget of a session: there is nothing yet that `+N` could raise.

    Raises:
        BadInput: it is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--budget-{kind}: {clean(text, 40)!r} is not a number") from None


def _resume_queued(opened: SessionHandle, typed: dict[str, str], *, as_json: bool) -> int:
    """Leave a session to the workers; one that was never queued to those of this machine."""
    from watchkeeper.runtime.run_session import queue_without_host

    if not raise_reached(opened, typed, ask=is_terminal() and not as_json, as_json=as_json):
        return PAUSED_EXIT
    folder = sessions.require(opened, opened.session_id).workspace
    queue_without_host(opened.path, opened.session_id, Needs((f"host:{socket.gethostname()}",), path=folder))
    return respond(
        as_json,
        {"session": opened.session_id, "status": "queued"},
        f"session {opened.session_id} is queued for a worker",
    )


def _await_others(opened: SessionHandle) -> None:
    """Wait for a host that is about to end, and print that.

    Raises:
        DrivenElsewhere: the host goes on, or does not end in time.
    """
    from watchkeeper.records.errors import DrivenElsewhere
    from watchkeeper.store import library

    session = opened.session_id

    def waiting(holder: LeaseHolder) -> None:
        click.echo(
            f"wk: waiting for the background process of session {session} (pid {holder.pid}) to finish an earlier command",
            err=True,
        )

    holder = library.outlast(opened.path, session, waiting)
    if holder is None:
        return
    if library.goes_on(opened.connection, session):
        raise DrivenElsewhere(
            f"session {session} is already running in a background process (pid {holder.pid}); watch it with `wk watch"
            f" {session}`"
        )
    raise DrivenElsewhere(
        f"a background process (pid {holder.pid}) is still finishing an earlier command of session {session}; resume"
        f" it afterwards (`wk watch {session}`)"
    )


def _needs(options: dict[str, Any], workspace: Path) -> Needs | None:
    """What the session needs of a worker; None if it is not queued.

    Without a label, a folder is one of this machine. With one, the folder is that of the worker and need not be here.
    """
    on, remote, commit = options.get("on", ()), options.get("remote"), options.get("commit")
    if not options.get("queued"):
        if on or remote or commit:
            raise click.UsageError("--on, --git and --commit are options of `wk worker queue`")
        return None
    if options.get("headless") or options.get("detach"):
        raise click.UsageError("a worker runs queued sessions; omit --headless and --detach")
    if remote is None:
        if commit is not None:
            raise click.UsageError("--commit requires --git REMOTE")
        if not on or workspace.exists():
            return Needs(on or (f"host:{socket.gethostname()}",), path=str(workspace.resolve()))
        if not workspace.is_absolute():
            raise BadInput(
                f"the workspace {workspace} does not exist here; for a folder on the worker, give an absolute path"
            )
        return Needs(on, path=str(workspace))
    from watchkeeper.runtime.worker import check_remote, full_commit

    commit = full_commit(commit or "HEAD", workspace)
    check_remote(remote, commit)
    return Needs(on, remote=remote, commit=commit)


def start(
    goal: str | None,
    model: str | None,
    options: dict[str, Any],
    from_session: str | None = None,
    outside: dict[str, str] | None = None,
) -> int:
    """Create a session, and run it or leave it to a worker; returns the exit code.

    Raises:
        click.UsageError, BadInput, NotFound: something cannot be used; nothing was written.
    """
    if goal is None and from_session is None:
        raise click.UsageError('give a goal, as in wk run "GOAL", or a session to continue: --from SESSION')
    if goal is not None and not goal.strip():
        raise BadInput('the goal is empty; describe the work: wk run "GOAL"')
    from watchkeeper.runtime.config import session_efforts
    from watchkeeper.runtime.control import check_configuration, check_key, refuse_agents
    from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, check_workspace, create_session

    refuse_agents()
    workspace = (options["workspace"] or Path.cwd()).expanduser()
    path = database_path(options["db"])
    needs = _needs(options, workspace)
    elsewhere = needs is not None and (
        needs.remote is not None or (bool(options["on"]) and not workspace.exists())
    )
    if elsewhere:
        if outside is not None:
            raise BadInput("a session from another program can continue only on this machine; omit --git")
        workspace = Path("/")
    else:
        check_workspace(workspace, path)
    config = check_configuration(workspace)
    if not elsewhere:
        _check_roles(options.get("efforts", {}), workspace)
    as_json = bool(options["as_json"])
    arguments = click.get_current_context().find_object(tuple) or ("run", *([goal] if goal else []))
    asking = may_ask(as_json=as_json)
    if outside is not None and model is None and config.model is None:
        model = outside["model"]
    base_url = options.get("base_url")
    if base_url is not None and not model:
        raise click.UsageError("--base-url needs --model with a model on that server")
    chosen = choose_model(model, config, arguments=arguments, may_ask=asking)
    if base_url is not None:
        chosen = ChosenModel(chosen.ref, base_url)
    ref = chosen.ref
    headless = not options.get("detach") and (bool(options.get("headless")) or as_json or not is_terminal())
    limits = {kind: float(amount) for kind, amount in typed_budgets(options).items()}
    _check_model(ref, config, limits)
    if needs is None:  # else the worker's key counts
        check_key(ref, environment="this shell", then="run this command again", base_url=chosen.base_url)
    if needs is None and config.memory.model is not None and ref != SURVEYOR:
        _check_model(config.memory.model, config, {})
        check_key(config.memory.model, environment="this shell", then="run this command again")
    sandbox = options["sandbox"] or config.sandbox.bash
    _check_sandbox(sandbox, ref, config, options, None if needs is not None else workspace)
    allowed = tuple(options.get("allow_models", ()))
    if outside is not None:
        _check_model(outside["model"], config, {})
        if ref.startswith(f"{outside['program']}/"):
            outside["model"] = ref
        allowed += (f"{outside['program']}/*",)
    if not elsewhere:
        allowed += confirm_roles(workspace, ref, allowed, may_ask=asking, show=headless and not as_json)
    if from_session == "last":
        from_session = find_session(path, from_session)
    carried = _carried(path, from_session, workspace, quiet=as_json) if from_session is not None else None
    wanted = NewSession(
        goal=goal if goal is not None else carried.goal if carried else "",
        workspace=workspace,
        model=ref,
        settings=SessionSettings(
            max_parallel=options["max_parallel"] or config.max_parallel,
            context_tokens=options["context_tokens"],
            memory=options["memory"],
            speed=options["speed"],
            allow=tuple(options["allow"]),
            deny=tuple(options["deny"]),
            base_url=chosen.base_url,
            allow_models=allowed,
            efforts=session_efforts(config, options.get("efforts", {}), carried.efforts if carried else {}),
            continues=outside,
            sandbox=sandbox,
        ),
        budgets=limits,
        needs=needs,
        rules=tuple(options.get("rules", ())),
    )
    if needs is not None:
        session_id = create_session(path, wanted, prepare=carried.write if carried else None)
        return respond(
            as_json,
            {"session": session_id, "status": "queued", "needs": needs.as_json()},
            f"session {session_id} is queued for a worker: {clean(needs.describe())}",
        )
    if headless:
        # Loaded before the session exists: a Ctrl+C during the import must not leave a session without a host.
        import_module("watchkeeper.cli.headless")
    session_id = random_id()
    try:
        create_session(path, wanted, new_id=lambda: session_id, prepare=carried.write if carried else None)
        return _drive(
            path, session_id, headless, as_json, resume=False, detach=bool(options.get("detach")),
            approval_timeout_seconds=options["approval_timeout"],
        )  # fmt: skip
    except KeyboardInterrupt:
        if headless:
            _leave_paused(path, session_id)
        raise


def _leave_paused(path: Place, session_id: str) -> None:
    """Pause a session that was interrupted before its host ran, if its row was written."""
    from watchkeeper.runtime.run_session import pause_interrupted

    with suppress(NotFound):
        pause_interrupted(path, session_id)


def _carried(path: Place, name: str, workspace: Path, *, quiet: bool) -> Continuation:
    """Read what the new session takes over from the session `name`, and print a line about it."""
    from watchkeeper.runtime.lifecycle import carry
    from watchkeeper.store.place import user_redactor

    carried = carry(path, name, redact=user_redactor())
    brief = carried.brief
    done = sum(task.status == "done" for task in brief.tasks)
    if not quiet:
        say(
            f"continuing {carried.session_id}: {done} of {len(brief.tasks)} tasks done, {len(brief.facts)}"
            f" facts  ({clean(carried.goal, 80)})"
        )
        if carried.workspace != str(workspace.resolve()):
            say(
                f"  its workspace was {clean(carried.workspace)}; this run uses {clean(workspace.resolve())}"
                " (change with --workspace)"
            )
    return carried


def _check_roles(efforts: Mapping[str, Effort], workspace: Path) -> None:
    """Refuse an effort for a role that this workspace does not have."""
    from watchkeeper.agents.roles import load_roles
    from watchkeeper.runtime.config import ALL_ROLES
    from watchkeeper.store.place import config_folder

    if named := efforts.keys() - {ALL_ROLES}:
        roles = load_roles(workspace, config_folder())
        for name in sorted(named - roles.keys()):
            raise BadInput(
                f"--effort: unknown role {clean(name, 60)!r}; the roles are {', '.join(sorted(roles))}"
            )


def _check_model(ref: str, config: Any, budgets: dict[str, float]) -> None:
    """Refuse now what would fail later: an unknown model, or a budget in USD for a model without a price."""
    from watchkeeper.agents.backends.programs import load_programs

    program = load_programs(config.agents).get(ref.partition("/")[0])
    if program is not None:
        if program.path(os.environ) is None:
            raise BadInput(
                f"{program.label} is not installed: {program.arguments[0]} not found; see `wk doctor`"
            )
        return  # what its calls cost is known when its own record tells of them
    if ref != SURVEYOR:
        from watchkeeper.models.registry import resolve
        from watchkeeper.runtime.host_factory import model_config

        resolve(ref, config=model_config(config, ref, None))
    if "usd" in budgets:
        from watchkeeper.models.registry import is_priced

        if not is_priced(ref):
            raise BadInput(
                f"the price of {ref} is unknown, so --budget-usd cannot be enforced; use --budget-tokens"
            )


def _check_sandbox(
    sandbox: str, ref: str, config: Config, options: dict[str, Any], workspace: Path | None
) -> None:
    """Refuse a sandbox that this machine cannot give (a worker's machine is checked by its host), and say that bash is
    not confined if it may run without a question.

    Raises:
        BadInput: nothing here confines the commands.
    """
    from watchkeeper.agents.backends.programs import load_programs, refuse_program
    from watchkeeper.agents.tools.contract import Permission
    from watchkeeper.agents.tools.workers import Permissions, WorkerPool

    if sandbox == OFF:
        rules = Permissions(
            user=config.permissions, allow=frozenset(options["allow"]), deny=frozenset(options["deny"])
        )
        if rules.resolve("bash") is Permission.ALLOW:
            click.echo("wk: bash runs without approval and without a sandbox (see `--sandbox`)", err=True)
        return
    refuse_program(sandbox, ref, load_programs(config.agents))
    if workspace is not None:
        asyncio.run(_try_sandbox(WorkerPool(1, workspace, os.environ, sandbox=sandbox)))


async def _try_sandbox(pool: WorkerPool) -> None:
    try:
        await pool.check_sandbox()
    finally:
        await pool.aclose()


def _drive(
    path: Place,
    session_id: str,
    headless: bool,
    as_json: bool,
    *,
    resume: bool,
    detach: bool,
    approval_timeout_seconds: float | None,
) -> int:
    if headless and not detach:
        from watchkeeper.cli.headless import drive_headless

        return drive_headless(
            path,
            session_id,
            resume=resume,
            as_json=as_json,
            approval_timeout_seconds=approval_timeout_seconds,
        )
    from watchkeeper.runtime.control import await_host, start_host

    pid = start_host(
        path,
        session_id,
        resume=resume,
        approval_timeout_seconds=approval_timeout_seconds,
        environment="this shell",
    )
    if detach and pid is not None:
        trouble = await_host(path, session_id, pid)
        if trouble is not None:
            raise WatchkeeperError(f"the background process did not start: {trouble.removeprefix('wk: ')}")
    if detach:
        return respond(
            as_json,
            {"session": session_id, "status": "running", "host": {"pid": pid}},
            f"session {session_id} is running in the background; watch it with `wk watch {session_id}`",
        )
    from watchkeeper.cli.watch import open_dashboard

    return open_dashboard(path, session_id)
