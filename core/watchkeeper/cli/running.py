"""`wk demo`, `wk run`, `wk resume`."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli.budgeting import new_budget_options
from watchkeeper.cli.options import (
    Opened,
    clean,
    complete_session,
    db_option,
    is_terminal,
    json_option,
    print_json,
    say,
    session_argument,
)
from watchkeeper.models.registry import SURVEYOR
from watchkeeper.records.errors import BadInput, NotFound, WatchkeeperError
from watchkeeper.records.ids import random_id

if TYPE_CHECKING:
    from watchkeeper.runtime.carrying import Carried
    from watchkeeper.store.lease import LeaseHolder

SURVEY_GOAL = "Survey this folder: what it holds, in which languages, how large, its entry points, its open TODOs and its tests."


def _speed(ctx: click.Context, param: click.Parameter, value: str | None) -> float | str | None:
    if value is None:
        return "unset"
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
    help="How long a question waits before it is denied (headless: 0, unless a dashboard watches).",
)


def driving_options(function: Any) -> Any:
    """What `demo` and `run` share."""
    for option in reversed(
        [
            db_option,
            json_option,
            click.option("--headless", is_flag=True, help="Drive in the foreground and print progress, without the dashboard."),
            click.option("--workspace", type=click.Path(path_type=Path), help="The folder to work in (default: this one)."),
            click.option("--max-parallel", type=click.IntRange(1, 256), help="How many sub-agents work at a time."),
            click.option("--context-tokens", type=click.IntRange(2_000), help="A smaller context window than the model's own."),
            click.option("--budget-usd", type=click.FloatRange(0, min_open=True), help="Pause when this much is spent."),
            click.option("--budget-tokens", type=click.IntRange(1), help="Pause after this many tokens, cache reads included."),
            click.option("--budget-turns", type=click.IntRange(1), help="Pause after this many model replies."),
            click.option("--budget-seconds", type=click.FloatRange(0, min_open=True), help="Pause after this time hosted."),
            click.option("--speed", callback=_speed, metavar="X|max", help="The surveyor's pace: 1 is a model's; max waits for nothing."),
            click.option("--allow", multiple=True, metavar="TOOL", help="Let a tool run without asking (repeatable)."),
            click.option("--deny", multiple=True, metavar="TOOL", help="Never let a tool run (repeatable)."),
            approval_timeout_option,
        ]
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@driving_options
def demo(**options: Any) -> int:
    """Survey a folder with the offline surveyor: real files, real tools, no key and no network.

    The surveyor is no language model: it is a small deterministic program behind the same protocol. Kill it
    at any moment, and `wk resume last` carries on. Its results: `wk artifacts last SURVEY.md`.
    """
    return _start(SURVEY_GOAL, SURVEYOR, options)


allow_model_option = click.option(
    "--allow-model",
    "allow_models",
    multiple=True,
    metavar="REF",
    help="Let roles of the workspace, and the planner, choose this model although it costs more than yours (repeatable).",
)


@click.command()
@click.argument("goal", required=False)
@click.option(
    "--from",
    "from_session",
    metavar="SESSION",
    shell_complete=complete_session,
    help="Carry on SESSION, own or imported: its plan and what it knew go along. GOAL may then be left out.",
)
@click.option(
    "--model", metavar="REF", help="anthropic/<model>, or offline/surveyor (default: from the configuration)."
)
@allow_model_option
@driving_options
def run(goal: str | None, from_session: str | None, model: str | None, **options: Any) -> int:
    """Start a session towards GOAL: a planner makes a plan, sub-agents work on its tasks.

    With a terminal, a background host drives it and the dashboard opens; quitting the dashboard may leave it
    running. With --headless, or without a terminal, it runs in the foreground.

    Without --model and without `model` in the configuration, it asks at a terminal which model to use, and
    refuses elsewhere.
    """
    if goal is None and from_session is None:
        raise click.UsageError(
            'say what should be done: wk run "GOAL", or which session to carry on: --from SESSION'
        )
    if goal is not None and not goal.strip():
        raise BadInput('the goal is empty; say what should be done: wk run "GOAL"')
    return _start(goal, model, options, from_session)


@click.command()
@session_argument
@click.argument("agent", required=False)
@db_option
@json_option
@click.option(
    "--headless", is_flag=True, help="Drive in the foreground and print progress, without the dashboard."
)
@click.option("--detach", is_flag=True, help="Start the background host and return.")
@approval_timeout_option
@allow_model_option
@new_budget_options
def resume(
    session: str,
    agent: str | None,
    db: Path | None,
    as_json: bool,
    headless: bool,
    detach: bool,
    approval_timeout: float | None,
    allow_models: tuple[str, ...],
    **limits: str | None,
) -> int:
    """Carry on SESSION from the exact step: plan, queue, every agent's memory. With AGENT, lift that agent's
    pause.

    Where a budget is used up, it says what is used and asks for a new limit; without a terminal, give one:
    `wk resume last --budget-usd +2`. A host that is about to end, after `wk pause` or `wk compact` say, is
    waited for, for 30 s at most.
    """
    from watchkeeper.cli.budgeting import PAUSED_EXIT, raise_reached, typed_budgets
    from watchkeeper.cli.choosing import confirm_roles, may_ask
    from watchkeeper.runtime.control import refuse_agents
    from watchkeeper.runtime.driving import allow_more_models
    from watchkeeper.runtime.preflight import check_configuration, check_resume
    from watchkeeper.runtime.starting import SessionSettings
    from watchkeeper.store.transcripts import refuse_imported

    refuse_agents()
    opened = Opened(db, session, own=True)
    refuse_imported(opened.connection, opened.session_id)
    typed = typed_budgets(limits)
    if agent is not None:
        from watchkeeper.cli.controlling import command

        if typed:
            raise BadInput("a new budget is the session's or a task's: `wk budget`, or resume the session")
        return command(opened, "resume", as_json, agent_id=opened.agent(agent))
    _await_others(opened)
    status = opened.one("SELECT status FROM sessions WHERE id = ?", (opened.session_id,))[0]
    if status in ("done", "cancelled"):
        from watchkeeper.cli.headless import print_result

        click.echo(
            f"wk: session {opened.session_id} is already {status}; there is nothing to resume", err=True
        )
        if as_json:
            print_result(opened.path, opened.session_id, as_json=True)
        return 0 if status == "done" else 1
    workspace, model, stored = opened.one(
        "SELECT workspace, model, settings FROM sessions WHERE id = ?", (opened.session_id,)
    )
    check_configuration(Path(workspace))
    check_resume(opened.path, opened.session_id, environment="this shell")
    allowed = (*SessionSettings.load(stored).allow_models, *allow_models)
    asking = may_ask(as_json=as_json)
    confirmed = confirm_roles(Path(workspace), model, allowed, may_ask=asking, show=headless and not as_json)
    if allow_models or confirmed:
        allow_more_models(opened.path, opened.session_id, (*allow_models, *confirmed))
    foreground = headless or as_json or not is_terminal()
    if not raise_reached(opened, typed, ask=is_terminal() and not as_json, as_json=as_json):
        return PAUSED_EXIT
    return _drive(
        opened.path, opened.session_id, foreground, as_json, resume=True, detach=detach,
        approval_timeout_seconds=approval_timeout,
    )  # fmt: skip


def _await_others(opened: Opened) -> None:
    """Wait for a host that is soon gone, and say so.

    Raises:
        DrivenElsewhere: one that goes on, or that does not end.
    """
    from watchkeeper.records.errors import DrivenElsewhere
    from watchkeeper.store import hosting

    session = opened.session_id

    def told(holder: LeaseHolder) -> None:
        click.echo(
            f"wk: waiting for the host of session {session} (pid {holder.pid}) to end what it was told to do",
            err=True,
        )

    holder = hosting.outlast(opened.path, session, told)
    if holder is None:
        return
    if hosting.goes_on(opened.connection, session):
        raise DrivenElsewhere(
            f"session {session} is driven by a live host (pid {holder.pid}); watch it with `wk watch"
            f" {session}`"
        )
    raise DrivenElsewhere(
        f"a host (pid {holder.pid}) still carries out an earlier command of session {session}; resume it"
        " when that is done"
        f" (`wk watch {session}`)"
    )


def _start(
    goal: str | None, model: str | None, options: dict[str, Any], from_session: str | None = None
) -> int:
    from watchkeeper.cli.choosing import choose_model, confirm_roles, may_ask
    from watchkeeper.runtime.control import refuse_agents
    from watchkeeper.runtime.preflight import check_configuration, check_key
    from watchkeeper.runtime.starting import NewSession, SessionSettings, check_workspace, create_session
    from watchkeeper.store import database

    refuse_agents()
    workspace = (options["workspace"] or Path.cwd()).expanduser()
    path = (options["db"] or database.default_path()).expanduser().absolute()
    check_workspace(workspace, path)
    config = check_configuration(workspace)
    as_json = bool(options["as_json"])
    arguments = click.get_current_context().find_object(tuple) or ("run", *([goal] if goal else []))
    asking = may_ask(as_json=as_json)
    chosen = choose_model(model, config, arguments=arguments, may_ask=asking)
    ref = chosen.ref
    headless = bool(options["headless"]) or as_json or not is_terminal()
    speed = options["speed"]
    budgets = {
        kind: float(options[f"budget_{kind}"])
        for kind in ("usd", "tokens", "turns", "seconds")
        if options[f"budget_{kind}"] is not None
    }
    _check_model(ref, config, budgets)
    check_key(ref, environment="this shell", then="run this command again", base_url=chosen.base_url)
    allowed = tuple(options.get("allow_models", ()))
    allowed += confirm_roles(workspace, ref, allowed, may_ask=asking, show=headless and not as_json)
    carried = _carried(path, from_session, workspace, quiet=as_json) if from_session is not None else None
    wanted = NewSession(
        goal=goal if goal is not None else carried.goal if carried else "",
        workspace=workspace,
        model=ref,
        settings=SessionSettings(
            max_parallel=options["max_parallel"] or config.max_parallel,
            context_tokens=options["context_tokens"],
            speed=1.0 if speed == "unset" else speed,
            allow=tuple(options["allow"]),
            deny=tuple(options["deny"]),
            base_url=chosen.base_url,
            allow_models=allowed,
        ),
        budgets=budgets,
    )
    if headless:
        import_module(
            "watchkeeper.cli.headless"
        )  # a Ctrl+C that came while it loads would find a session that nobody drives
    session_id = random_id()
    try:
        create_session(path, wanted, new_id=lambda: session_id, prepare=carried.write if carried else None)
        seconds = options["approval_timeout"]
        return _drive(
            path, session_id, headless, as_json, resume=False, detach=False, approval_timeout_seconds=seconds
        )
    except KeyboardInterrupt:
        if headless:
            _leave_paused(path, session_id)
        raise


def _leave_paused(path: Path, session_id: str) -> None:
    """A Ctrl+C between the session's row and its host: it rests, if its row is there at all."""
    from watchkeeper.runtime.driving import pause_interrupted

    with suppress(NotFound):
        pause_interrupted(path, session_id)


def _carried(path: Path, name: str, workspace: Path, *, quiet: bool) -> Carried:
    """What the session `name` hands on, and a line that says so."""
    from watchkeeper.runtime.carrying import carry
    from watchkeeper.store.user_secrets import user_redactor

    carried = carry(path, name, redact=user_redactor())
    brief = carried.brief
    done = sum(task.status == "done" for task in brief.tasks)
    if not quiet:
        say(
            f"carries on {carried.session_id}: {done} of {len(brief.tasks)} tasks done, {len(brief.facts)}"
            f" facts  ({clean(carried.goal, 80)})"
        )
        if carried.workspace != str(workspace.resolve()):
            say(
                f"  it worked in {clean(carried.workspace)}; this run works in {clean(workspace.resolve())}"
                " (--workspace chooses)"
            )
    return carried


def _check_model(ref: str, config: Any, budgets: dict[str, float]) -> None:
    """Say at once what would fail later: an unknown model, or a budget in USD for a model without a price."""
    if ref != SURVEYOR:
        from watchkeeper.models.registry import resolve
        from watchkeeper.runtime.assembling import model_config

        resolve(ref, config=model_config(config, None))
    if "usd" in budgets:
        from watchkeeper.models.prices import is_priced

        if not is_priced(ref):
            raise BadInput(
                f"nobody knows a price of {ref}, so --budget-usd cannot be kept; use --budget-tokens"
            )


def _drive(
    path: Path,
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
            raise WatchkeeperError(f"the background host did not start: {trouble.removeprefix('wk: ')}")
    if detach and as_json:
        print_json({"session": session_id, "status": "running", "host": {"pid": pid}})
        return 0
    if detach:
        click.echo(f"session {session_id} runs in the background; watch it with `wk watch {session_id}`")
        return 0
    from watchkeeper.cli.watching import open_dashboard

    return open_dashboard(path, session_id)
