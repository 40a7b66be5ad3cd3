"""Commands that change a run from another shell: `wk pause`, `cancel`, `rerun`, `compact`, `undo`, `redo`,
`steer`, `budget`, `approve` and `deny`.

Each is queued in the database for the process that runs the session, and its answer is awaited. What needs no
run is done at once if no process runs the session.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.help import Command, Group
from watchkeeper.cli.options import (
    ACTS,
    LOOKS,
    SessionHandle,
    clean,
    complete_session,
    controls_session,
    database_path,
    day_and_minute,
    db_option,
    explains_last,
    json_option,
    open_for_control,
    print_json,
    respond,
    say_chosen,
    session_argument,
)
from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound, WatchkeeperError
from watchkeeper.records.text import plural, reveal
from watchkeeper.records.tool_inputs import digest_of, parse_pattern, pattern_of
from watchkeeper.runtime import control
from watchkeeper.store import agents, budgets, plans
from watchkeeper.store.agents import ambiguous
from watchkeeper.store.commands import CONFLICT, Question, find_questions, load_grants, load_question
from watchkeeper.store.database import protected_files
from watchkeeper.store.driver import encode
from watchkeeper.store.external import ExternalQuestion, find_external_questions
from watchkeeper.store.place import Place


def command(
    opened: SessionHandle,
    kind: str,
    as_json: bool,
    *,
    agent_id: str | None = None,
    task_id: str | None = None,
    payload: dict[str, Any] | None = None,
    about: str = "",
) -> int:
    """Queue a command, wait for its answer, print that, and return the exit code. `about`: printed below the answer.

    Raises:
        BadInput, WatchkeeperError: see `control.carry_out`; or the session refuses the command, or fails to apply it.
    """
    command_id, answer = control.carry_out(
        opened.path, opened.session_id, kind, agent_id=agent_id, task_id=task_id, payload=payload,
        requested_by=f"{control.user_name()} (command line)",
    )  # fmt: skip
    if as_json:
        value = {"command": command_id, "kind": kind, "status": answer.status, "result": answer.result}
        print_json(value | ({"about": about} if about else {}))
    elif answer.status == "refused":
        raise BadInput(f"refused: {answer.result}")
    elif answer.status == "failed":
        raise WatchkeeperError(f"failed: {answer.result}")
    else:
        click.echo(answer.result)
        for line in about.split("\n") if about else ():
            click.echo(f"  {reveal(line)}")
    return {"refused": 2, "failed": 1}.get(answer.status, 0)


def _apply_now(
    opened: SessionHandle, as_json: bool, apply: Callable[[], str], otherwise: Callable[[], int]
) -> int:
    """Change the session in this process if no host runs it, else send it the command (`otherwise`)."""
    if opened.host is None:
        with suppress(DrivenElsewhere):  # a host has just started: the command is for it
            said = apply()
            return respond(as_json, {"status": "applied", "result": said}, said)
    return otherwise()


def show_preview(opened: SessionHandle, agent_id: str, as_json: bool, **how: Any) -> int:
    """Print what a change of an agent's context (see `AgentMemory.preview`) would lead to, as the store has it.

    Raises:
        BadInput: it cannot be done, or nothing is to gain.
    """
    from watchkeeper.agents.agent_state import AgentMemory, preview_lines
    from watchkeeper.memory.tokens import default_counter

    agent = agents.load(opened, agent_id)
    assert agent is not None
    name, model = agent.name, agent.model
    try:
        foretold = AgentMemory.stored(opened, agent_id, default_counter()).preview(opened, model=model, **how)
    except ValueError as refused:
        raise BadInput(str(refused)) from None

    def lines() -> Iterator[str]:
        change, cached = preview_lines(foretold)
        yield f"{clean(name, 60)}: {change}"
        yield cached
        yield f"The prompt would be {plural(len(foretold.messages), 'message')}, plus the system prompt and tools:"
        for place, (message, tokens) in enumerate(zip(foretold.messages, foretold.sizes, strict=True)):
            if place == foretold.messages_cached:
                yield "---- not in the prompt cache from here on ----"
            yield f"{place + 1:>5} {message['role']:<9} {tokens:>7,} tok  {clean(_said(message), 100)}"

    value = {"agent_id": agent_id, "name": name, "model": model} | asdict(foretold)
    return respond(as_json, value, lines())


def _said(message: dict[str, Any]) -> str:
    """The beginning of what a message says, calls and returns."""
    from watchkeeper.memory.content import blocks_of, result_text

    found = []
    for block in blocks_of(message["content"]):
        kind = block.get("type")
        if kind == "tool_use":
            found.append(f"→ {block.get('name')} {encode(block.get('input'))[:200]}")
        elif kind == "tool_result":
            found.append(f"← {result_text(block)[:200]}")
        else:
            found.append(str(block.get("text", f"[{kind}]"))[:200])
    return "  ".join(found[:20])


@click.command(
    cls=Command,
    examples=(
        "wk pause last # after the current step",
        "wk pause last planner --now # one agent, immediately",
    ),
)
@session_argument
@click.argument("agent", required=False)
@click.option("--now", is_flag=True, help="Pause immediately: abort the current model call.")
@db_option
@json_option
@controls_session
def pause(opened: SessionHandle, agent: str | None, now: bool, as_json: bool) -> int:
    """Pause SESSION, or one AGENT, after the current step."""
    if agent is None and opened.host is None:
        status = opened.status
        state = "stopped; `wk resume` continues it" if status == "running" else status
        said = f"nothing is running: the session is {state}"
        return respond(as_json, {"status": "applied", "result": said}, said)
    agent_id = opened.agent(agent) if agent is not None else None
    return command(opened, "pause", as_json, agent_id=agent_id, payload={"now": now})


@click.command(
    cls=Command,
    examples=(
        "wk cancel last # end the newest run; its work is kept",
        "wk cancel last fix-bytes # end one task",
    ),
)
@session_argument
@click.argument("agent", required=False)
@click.option("--now", is_flag=True, hidden=True)
@db_option
@json_option
@controls_session
def cancel(opened: SessionHandle, agent: str | None, now: bool, as_json: bool) -> int:
    """End SESSION, or one AGENT's task, permanently. Completed work is kept."""
    from watchkeeper.runtime.run_session import cancel_without_host

    if now:
        raise BadInput("`wk cancel` is always immediate; omit --now")
    if agent is None:
        return _apply_now(
            opened, as_json,
            lambda: cancel_without_host(opened.path, opened.session_id),
            lambda: command(opened, "cancel", as_json),
        )  # fmt: skip
    task_id = opened.task(agent)
    agent_id = None if task_id else opened.agent(agent)
    return command(opened, "cancel", as_json, task_id=task_id, agent_id=agent_id)


@click.command(
    cls=Command,
    examples=(
        "wk rerun last fix-bytes # do this task again",
        'wk rerun last fix-bytes --fresh --message "Use asyncio" # start over',
    ),
)
@session_argument
@click.argument("task")
@click.option("--fresh", is_flag=True, help="Start without memory of the last attempt.")
@click.option(
    "--message", metavar="TEXT", help="What to do differently, and why. Sent to the agent and the planner."
)
@db_option
@json_option
@controls_session
def rerun(opened: SessionHandle, task: str, fresh: bool, message: str | None, as_json: bool) -> int:
    """Run TASK (or an AGENT's task) again, as a new attempt. Tasks that depend on it run again only if their
    inputs changed."""
    task_id, agent_id = opened.task(task), None
    if task_id is None:
        try:
            agent_id = opened.agent(task)
        except NotFound:
            names = ", ".join(name for _, name in plans.task_names(opened, opened.session_id))
            raise NotFound(f"no task or agent {task!r}; the tasks are {names or 'none yet'}") from None
    return command(
        opened,
        "rerun",
        as_json,
        task_id=task_id,
        agent_id=agent_id,
        payload={"fresh": fresh, "message": message or ""},
    )


@click.group(
    cls=Group,
    examples=(
        'wk plan add last docs "Document the parser" # add a task',
        "wk plan drop last docs # drop it",
    ),
)
def plan() -> None:
    """Change the plan of a session. The planner is notified. A running task cannot be changed; cancel it first."""


_task_options = (
    click.option("--role", metavar="ROLE", help="Role of the agent, such as coder."),
    click.option("--title", metavar="TEXT", help="One-line title to display."),
    click.option("--needs", multiple=True, metavar="TASK", help="Task that must be done first (repeatable)."),
    click.option(
        "--output", "outputs", multiple=True, metavar="NAME",
        help="What the task must produce: an artifact, or file:PATH (repeatable).",
    ),
)  # fmt: skip


def _with_task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_task_options):
        function = option(function)
    return function


def _task_arguments(**given: Any) -> dict[str, Any]:
    """The arguments of a plan tool, without what was not given."""
    names = {"needs": "depends_on", "outputs": "expected_outputs"}
    return {
        names.get(name, name): list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value
    }


@plan.command(
    "add",
    examples=(
        'wk plan add last docs "Document the parser" # add a task',
        'wk plan add last docs "Document it" --needs fix-parser # after another task',
    ),
)
@session_argument
@click.argument("name")
@click.argument("instructions")
@_with_task_options
@db_option
@json_option
@controls_session
def plan_add(opened: SessionHandle, as_json: bool, **given: Any) -> int:
    """Add the task NAME. Its agent reads only INSTRUCTIONS, not the rest of the plan."""
    arguments = _task_arguments(**{**given, "role": given["role"] or "coder"})
    return command(opened, "plan", as_json, payload={"act": "add", "arguments": arguments})


@plan.command(
    "revise",
    examples=(
        'wk plan revise last docs --instructions "Shorter" # replace its instructions',
        "wk plan revise last docs --needs fix-parser # wait for another task",
    ),
)
@session_argument
@click.argument("task")
@click.option("--instructions", metavar="TEXT", help="New instructions; they replace the old ones.")
@_with_task_options
@db_option
@json_option
@controls_session
def plan_revise(opened: SessionHandle, as_json: bool, **given: Any) -> int:
    """Change the given parts of TASK, which must not be running. For a finished task, the change applies to its next
    re-run."""
    return command(opened, "plan", as_json, payload={"act": "revise", "arguments": _task_arguments(**given)})


@plan.command(
    "drop",
    examples=(
        "wk plan drop last docs # drop this task",
        'wk plan drop last docs --reason "Already written" # tell the planner why',
    ),
)
@session_argument
@click.argument("task")
@click.option("--reason", metavar="TEXT", help="Reason, shown to the planner.")
@db_option
@json_option
@controls_session
def plan_drop(opened: SessionHandle, as_json: bool, **given: Any) -> int:
    """Drop TASK. Tasks that depend on it run without it."""
    return command(opened, "plan", as_json, payload={"act": "drop", "arguments": _task_arguments(**given)})


@click.command(
    cls=Command,
    examples=(
        "wk compact last planner --preview # show what would change",
        "wk compact last planner # compact now",
    ),
)
@session_argument
@click.argument("agent")
@click.option(
    "--up-to", type=click.IntRange(1), metavar="SEQ", help="Compact messages up to this one; keep later ones."
)
@click.option("--instructions", metavar="TEXT", help="What the summary must keep or leave out.")
@click.option("--model", metavar="REF", help="Model that writes the summary (default: the memory model).")
@click.option(
    "--preview",
    is_flag=True,
    help="Show the result without changing anything, with a digest instead of the summary.",
)
@db_option
@json_option
@controls_session
def compact(
    opened: SessionHandle,
    agent: str,
    up_to: int | None,
    instructions: str | None,
    model: str | None,
    preview: bool,
    as_json: bool,
) -> int:
    """Compact AGENT's context now. No message is deleted: `wk undo` restores the context."""
    if preview:
        return show_preview(opened, opened.agent(agent), as_json, compact=True, up_to=up_to)
    payload = {"up_to": up_to, "instructions": instructions} | ({"model": model} if model else {})
    return command(opened, "compact", as_json, agent_id=opened.agent(agent), payload=payload)


@click.command(
    cls=Command,
    examples=(
        "wk undo last planner # restore the earlier context",
        "wk undo last planner --to 3 # go back several compactions",
    ),
)
@session_argument
@click.argument("agent")
@db_option
@click.option(
    "--to",
    type=int,
    metavar="VERSION",
    help="Undo several compactions: return to this version of the context.",
)
@json_option
@controls_session
def undo(opened: SessionHandle, agent: str, to: int | None, as_json: bool) -> int:
    """Undo AGENT's last compaction, if the earlier context still fits."""
    payload = {} if to is None else {"to": to}
    return command(opened, "undo", as_json, agent_id=opened.agent(agent), payload=payload)


@click.command(
    cls=Command,
    examples=("wk redo last planner # reapply it", "wk redo last fix-bytes # for the agent of a task"),
)
@session_argument
@click.argument("agent")
@db_option
@json_option
@controls_session
def redo(opened: SessionHandle, agent: str, as_json: bool) -> int:
    """Reapply AGENT's last undone compaction."""
    return command(opened, "redo", as_json, agent_id=opened.agent(agent))


@click.command(
    cls=Command,
    examples=(
        'wk steer last planner "Test first" # read before its next turn',
        'wk steer last --all "Use Python 3.11" # a rule for every agent',
    ),
)
@session_argument
@click.argument("words", nargs=-1, required=True, metavar="AGENT TEXT")
@click.option("--all", "everyone", is_flag=True, help="Send TEXT to all agents and make it a session rule.")
@db_option
@json_option
@controls_session
def steer(opened: SessionHandle, words: tuple[str, ...], everyone: bool, as_json: bool) -> int:
    """Send AGENT a message. The agent reads it before its next turn.

    With --all, leave AGENT out: every active agent reads TEXT, and later agents get it in their prompt. `wk
    memory unpin` removes it.
    """
    if len(words) != (1 if everyone else 2):
        usage = "wk steer SESSION --all TEXT" if everyone else "wk steer SESSION AGENT TEXT"
        raise click.UsageError(f"usage: {usage}; put quotes around TEXT if it contains spaces")
    payload: dict[str, Any] = {"text": words[-1]}
    if everyone:
        return command(opened, "steer", as_json, payload=payload | {"all": True})
    return command(opened, "steer", as_json, agent_id=opened.agent(words[0]), payload=payload)


@click.command(
    cls=Command,
    examples=(
        "wk budget last --usd +5 # allow five more dollars",
        "wk budget last --task docs --tokens 200000 # limit one task",
    ),
)
@click.argument("session", required=False, shell_complete=complete_session)
@click.option("--project", hidden=True)
@click.option("--remove", is_flag=True, hidden=True)
@click.option("--task", help="Limit this task instead of the session.")
@click.option("--usd", metavar="AMOUNT|+N", help="Limit in USD: an amount, or +N to add N.")
@click.option("--tokens", metavar="AMOUNT|+N", help="Limit in tokens, including cache reads.")
@click.option("--turns", metavar="AMOUNT|+N", help="Maximum number of model replies.")
@click.option("--seconds", metavar="AMOUNT|+N", help="Limit on run time, in seconds.")
@click.option("--lift", type=click.Choice(budgets.KINDS), multiple=True, help="Remove a budget.")
@db_option
@json_option
@explains_last(ACTS)
def budget(
    session: str | None,
    project: str | None,
    remove: bool,
    db: Place | None,
    task: str | None,
    lift: tuple[str, ...],
    as_json: bool,
    **limits: str | None,
) -> int:
    """Set budgets of SESSION, or of one task. A session that reaches a budget pauses and keeps all its work.

    The new amount must exceed the current usage.
    """
    from watchkeeper.runtime.control import refuse_agents
    from watchkeeper.runtime.run_session import remove_project_budgets, set_budget_without_host

    if project is not None or remove:
        if project is None or not remove or session or task or lift or any(limits.values()):
            raise BadInput(
                "project budgets are no longer supported; `wk budget --project NAME --remove` deletes a stored one"
            )
        refuse_agents()
        gone = remove_project_budgets(database_path(db), project)
        amounts = " and ".join(budgets.amount_text(amount, kind) for kind, amount in gone)
        said = f"project {clean(project)}: {(amounts and f'removed the budget of {amounts}') or 'no budget'}"
        return respond(as_json, {"project": project, "budgets": []}, said)
    if session is None:
        raise BadInput("name a SESSION, or `last`")
    opened = open_for_control(db, session)
    task_id = opened.task(task) if task is not None else None
    if task is not None and task_id is None:
        raise NotFound(f"no task {task!r} in session {opened.session_id}")
    wanted: dict[str, float | None] = {}
    for kind in budgets.KINDS:
        if (typed := limits[kind]) is not None:
            try:
                wanted[kind] = budgets.amount_of(opened, opened.session_id, task_id, kind, typed)
            except ValueError as refused:
                raise BadInput(f"--{kind}: {clean(refused)}") from None
    changes = [*wanted.items(), *((kind, None) for kind in lift)]
    if not changes:
        raise BadInput("specify a budget: --usd, --tokens, --turns, --seconds or --lift")

    def change(kind: str, amount: float | None) -> int:
        payload = {"kind": kind, "amount": amount}
        return _apply_now(
            opened, as_json,
            lambda: set_budget_without_host(opened.path, opened.session_id, task_id, kind, amount),
            lambda: command(opened, "set_budget", as_json, task_id=task_id, payload=payload),
        )  # fmt: skip

    return max([change(kind, amount) for kind, amount in changes])


# Questions of agents: `wk approve`, `wk deny`.

_QUESTIONS = f"As SESSION, {ACTS}"
_words = click.argument("words", nargs=-1, metavar="[SESSION] [ID]")


def _found(db: Place | None, words: tuple[str, ...], *, waiting: bool) -> tuple[SessionHandle, str]:
    """The session of the question that `words` name, and the question's id.

    Raises:
        BadInput: several questions match, or there are more than two words.
        NotFound: none matches.
    """
    session, wanted = words if len(words) == 2 else (None, words[0])
    opened = SessionHandle(db, session, own=True) if session is not None else SessionHandle(db)
    session_id = opened.session_id or None
    found = find_questions(opened.connection, session_id, wanted, waiting=waiting)
    if not found:
        over = find_questions(opened.connection, session_id, wanted, waiting=False) if waiting else []
        if len(over) == 1 and wanted != "last":
            question = load_question(opened.connection, opened.path, over[0][1])
            if question is not None and question.reason and question.decided_by is None:
                raise NotFound(f"question {question.id} cannot be answered: {clean(question.reason, 300)}")
        every = [one[1] for one in find_questions(opened.connection, session_id, "", waiting=waiting)]
        which = f"found: {', '.join(every[-8:])}" if every else "there are none"
        raise NotFound(f"no {'pending ' if waiting else ''}question {wanted!r}; {which}")
    if len(found) > 1:
        raise ambiguous(wanted, [one[1] for one in found])
    opened.session_id = found[0][0]
    if session is None and wanted == "last":
        say_chosen(opened.connection, opened.session_id)
    return opened, found[0][1]


def _chosen(
    db: Place | None, words: tuple[str, ...], as_json: bool, *, show: bool = False
) -> tuple[str, ...]:
    """The words that name one question: those given, or the only question that waits there. Where none or several
    wait, print them.

    `words`: nothing, `last`, a session, a question's id, or a session with `last` or an id. With `show`, `last` is the
    newest question.

    Raises:
        BadInput: several wait, or there are more than two words.
        NotFound: none waits.
    """
    if len(words) > 2:
        raise BadInput("specify a session and a question id, or only the id")
    if not words:
        return ()
    if len(words) == 1 and words[0] != "last":
        opened = SessionHandle(db)
        if find_questions(opened.connection, None, words[0], waiting=False) or _external(db, words):
            return words
        try:
            words = (SessionHandle(db, words[0], own=True).session_id, "last")
        except (NotFound, BadInput):
            return words
    if words[-1] != "last" or show:
        return words
    opened = SessionHandle(db, words[0], own=True) if len(words) == 2 else SessionHandle(db)
    waiting = find_questions(opened.connection, opened.session_id or None, "", waiting=True)
    others = _external(db, ("",)) if len(words) == 1 else []
    if len(waiting) + len(others) > 1:
        list_questions(db, as_json, opened.session_id or None)
        raise BadInput(f"{len(waiting) + len(others)} questions are pending; give the id of one")
    return (waiting[0][0], waiting[0][1]) if waiting else words


def _external(db: Place | None, words: tuple[str, ...]) -> list[ExternalQuestion]:
    """The waiting questions of other terminals whose id begins with the only word."""
    path = database_path(db)
    if not isinstance(path, Path):
        return []
    return find_external_questions(SessionHandle(db).connection, words[0])


def list_questions(db: Place | None, as_json: bool, session_id: str | None = None) -> int:
    """Print every question that waits, of one session or of all: a line each."""
    opened = SessionHandle(db)
    found = find_questions(opened.connection, session_id, "", waiting=True)
    questions = [_question(opened, question_id) for _, question_id in found]
    others = _external(db, ("",)) if session_id is None else []
    value = [question_json(one) for one in questions]
    if others:
        from watchkeeper.cli import interop

        value += [interop.question_json(one) for one in others]
    lines = [
        f"{one.id}  session {one.session_id}  {clean(one.headline, 80)}: {clean(_runs(one), 200)}"
        for one in questions
    ]
    lines += [f"{one.id[:12]}  another terminal  {clean(one.tool, 80)}" for one in others]
    return respond(as_json, value, lines, empty="no pending questions")


def _runs(question: Question, edited: dict[str, Any] | None = None) -> str:
    """What an approval lets run: a command, the file of a change, or the input."""
    arguments = question.arguments if edited is None else edited
    if isinstance(text := arguments.get("command"), str) and question.tool == "bash":
        return text
    return str(arguments.get("file_path") or encode(arguments))


def _elsewhere(db: Place | None, words: tuple[str, ...]) -> tuple[Path, ExternalQuestion] | None:
    """The question of a session in another terminal, where `words` name none of a run here."""
    from watchkeeper.cli.interop import find_question

    try:
        _found(db, words, waiting=True)
    except NotFound:
        return find_question(db, words)
    return None


def _question(opened: SessionHandle, approval_id: str) -> Question:
    question = load_question(opened.connection, opened.path, approval_id)
    assert question is not None
    return question


@click.command(
    cls=Command,
    examples=("wk approve # list pending questions", "wk approve last # allow the only pending call"),
)
@_words
@click.option("--show", is_flag=True, help="Print the full question without answering it.")
@click.option("--always", is_flag=True, help="Always allow this tool in this session.")
@click.option(
    "--pattern",
    metavar="WORDS",
    help="Always allow commands that match a pattern, such as 'git status *'.",
)
@click.option(
    "--edit",
    metavar="TEXT",
    help="Run this input instead: a command for bash, JSON for other tools. - reads standard input.",
)
@click.option(
    "--keep",
    type=click.Choice(["ours", "theirs"]),
    help="In a merge conflict, keep your side (ours) or the task's (theirs). By default, the planner resolves it.",
)
@click.option(
    "--choose",
    multiple=True,
    metavar="NUMBER|TEXT",
    help="Answer a multiple-choice question from another terminal.",
)
@click.option("--reason", help="Reason shown to the model.")
@click.option("--grants", is_flag=True, help="List the standing approvals of SESSION (default: `last`).")
@click.option(
    "--revoke",
    type=click.IntRange(1),
    metavar="ID",
    help="Revoke a standing approval of SESSION, by its number.",
)
@db_option
@json_option
@explains_last(f"{_QUESTIONS} With --grants alone, {LOOKS}")
def approve(
    words: tuple[str, ...], show: bool, always: bool, pattern: str | None, edit: str | None, keep: str | None,
    choose: tuple[str, ...], reason: str | None, grants: bool, revoke: int | None, db: Place | None, as_json: bool,
) -> int:  # fmt: skip
    """Allow the pending tool call ID. Without SESSION, ID may be from any session.

    `last`, or SESSION alone, selects the only pending question. If several are pending, the command lists them and
    allows none. Without arguments, it lists all pending questions.

    A pattern is a simple command, or several joined by |. A final * matches any further arguments. A pattern
    matches each part of a pipeline, but no other operator, redirection or substitution. Matching commands run
    without a shell.
    """
    if grants or revoke is not None:
        if show or always or pattern or edit is not None or keep or choose or reason:
            raise BadInput("--grants and --revoke cannot be combined with options that answer a question")
        return _grants(db, words, revoke, as_json)
    if not (words := _chosen(db, words, as_json, show=show)):
        return list_questions(db, as_json)
    if (elsewhere := _elsewhere(db, words)) is not None:
        from watchkeeper.cli import interop

        if show:
            return respond(as_json, interop.question_json(elsewhere[1]), interop.question_lines(elsewhere[1]))
        if always or pattern is not None or edit is not None or keep is not None:
            raise BadInput("a question from another terminal can only be allowed once or denied")
        return interop.answer(*elsewhere, as_json, allow=True, chosen=choose)
    opened, approval_id = _found(db, words, waiting=not show)
    if choose:
        raise BadInput("--choose is only for multiple-choice questions from other terminals")
    if show:
        question = _question(opened, approval_id)
        return respond(as_json, question_json(question), question_with_answers(question))
    payload: dict[str, Any] = {"approval": approval_id, "reason": reason}
    if always and pattern is not None:
        raise BadInput("give either --always (every call of the tool) or --pattern (some commands)")
    if always:
        payload["scope"] = "tool"
    if pattern is not None:
        try:
            payload |= {"scope": "pattern", "pattern": pattern_of(parse_pattern(pattern))}
        except ValueError as fault:
            raise BadInput(str(fault)) from None
    question = _question(opened, approval_id)
    if keep is not None:
        if not question.allows_sides:
            raise BadInput("--keep applies only to merge conflicts where one side can be kept")
        payload["edited_input"] = question.keeping(keep)
    elif edit is not None:
        text = sys.stdin.read().removesuffix("\n") if edit == "-" else edit
        if not question.allows_edit:
            raise BadInput("resolve a merge conflict with --keep, not with --edit")
        try:
            edited = payload["edited_input"] = question.edited_arguments(text)
        except ValueError as fault:
            raise BadInput(f"--edit: {fault}") from None
        # The answer is for the file that the edited input names, as it is now.
        if digest := digest_of(Path(question.root), question.tool, edited, protected_files(opened.path)):
            payload["subject_digest"] = digest
    edited_input = payload.get("edited_input")
    if pattern is not None and (refusal := question.refuses_pattern(payload["pattern"], edited_input)):
        raise BadInput(refusal)
    about = _runs(question, edited_input)
    return command(opened, "approve", as_json, payload=payload, about=about)


@click.command(
    cls=Command,
    examples=(
        "wk deny last # deny the only pending call",
        'wk deny k3v7 --reason "Not in this folder" # say why',
    ),
)
@_words
@click.option("--reason", help="Reason shown to the model.")
@db_option
@json_option
@explains_last(_QUESTIONS)
def deny(words: tuple[str, ...], reason: str | None, db: Place | None, as_json: bool) -> int:
    """Deny the pending tool call ID. Without SESSION, ID may be from any session.

    `last`, or SESSION alone, selects the only pending question. If several are pending, the command lists them and
    denies none. Without arguments, it lists all pending questions.
    """
    if not (words := _chosen(db, words, as_json)):
        return list_questions(db, as_json)
    if (elsewhere := _elsewhere(db, words)) is not None:
        from watchkeeper.cli import interop

        return interop.answer(*elsewhere, as_json, allow=False, reason=reason)
    opened, approval_id = _found(db, words, waiting=True)
    about = _runs(_question(opened, approval_id))
    payload = {"approval": approval_id, "reason": reason}
    return command(opened, "deny", as_json, payload=payload, about=about)


def _grants(db: Place | None, words: tuple[str, ...], revoke: int | None, as_json: bool) -> int:
    """List the tools and command patterns that run in a session without a question, or revoke one."""
    if len(words) > 1:
        raise BadInput("specify one SESSION: wk approve --grants SESSION")
    session = words[0] if words else None
    if revoke is not None:
        if session is None:
            raise BadInput("--revoke needs a session: wk approve SESSION --revoke ID")
        return _revoke(open_for_control(db, session), revoke, as_json)
    opened = SessionHandle(db, "last" if session is None else session)
    found = load_grants(opened.connection, opened.session_id)
    names = ("id", "tool", "pattern", "granted_by", "created_at", "revoked_by", "revoked_at")
    return respond(
        as_json,
        [{name: getattr(grant, name) for name in names} for grant in found],
        (
            f"{grant.id:>4}  {day_and_minute(grant.created_at)}  {reveal(grant.subject)}"
            f"  by {clean(grant.granted_by)}"
            + ("" if grant.is_live else f"  revoked by {clean(grant.revoked_by)}")
            for grant in found
        ),
        empty="no standing approvals",
    )


def _revoke(opened: SessionHandle, grant_id: int, as_json: bool) -> int:
    from watchkeeper.runtime.run_session import revoke_without_host

    return _apply_now(
        opened, as_json,
        lambda: revoke_without_host(opened.path, opened.session_id, grant_id),
        lambda: command(opened, "revoke", as_json, payload={"grant": grant_id}),
    )  # fmt: skip


def question_with_answers(question: Question) -> Iterator[str]:
    """The lines of a whole question, and the commands that answer it.

    Every character that a terminal would obey or hide is made visible.
    """
    yield from map(reveal, question.lines())
    if question.status != "waiting":
        by = f" by {clean(question.decided_by)}" if question.decided_by else ""
        yield f"\n{question.status}{by}"
        return
    where = f"{question.session_id} {question.id}"
    if question.cause == CONFLICT:
        yield f"\n  wk approve {where}   the planner resolves it"
        if question.allows_sides:
            yield f"  wk approve {where} --keep ours   or   --keep theirs"
        yield f"  wk deny {where}   cancel the merge"
        return
    yield f"\n  wk approve {where}   or   wk deny {where}"
    if question.allows_always:
        words = question.suggested_pattern
        pattern = f", --pattern {reveal(repr(words))}" if words else ""
        yield f"  options of approve: --edit TEXT, --always{pattern}"


def question_json(question: Question) -> dict[str, Any]:
    """A question as JSON: its input as it would run, and the model's own."""
    return {
        "id": question.id,
        "session": question.session_id,
        "status": question.status,
        "decided_by": question.decided_by,
        "tool": question.tool,
        "agent": question.agent,
        "task": question.task,
        "title": question.title,
        "workspace": question.workspace,
        "folder": question.folder,
        "cause": question.cause,
        "note": question.note,
        "input": question.arguments,
        "original_input": question.original,
        "shown": [{"title": one.title, "text": one.text} for one in question.sections],
    }
