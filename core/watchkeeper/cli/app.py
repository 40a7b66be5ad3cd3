"""The command `wk`. Its subcommands load when they are called; every error is one line, with an exit code."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from watchkeeper.records.errors import BadInput, HostFault, WatchkeeperError, explain_import, host_fault
from watchkeeper.records.text import one_line  # early: a process without descriptors can load nothing more

COMMANDS: dict[str, tuple[str, str]] = {
    "watch": ("watch", "Watch a session live, or browse a finished one"),
    "serve": ("serve", "Show the dashboard in a browser"),
    "demo": ("run", "Try it: a planner and sub-agents survey a folder, with no key and no network"),
    "run": ("run", "Start a session: a planner and its sub-agents work towards a goal"),
    "models": ("models", "List the models that a run can use here, with prices"),
    "resume": ("run", "Continue from the last saved step"),
    "worker": ("headless", "Drive queued sessions on this machine"),
    "workers": ("headless", "List the workers of every machine"),
    "pause": ("control", "Pause a session, or one agent"),
    "cancel": ("control", "End a session, or one agent's task, permanently"),
    "rerun": ("control", "Do a task again"),
    "plan": ("control", "Add, revise or drop a task of the plan"),
    "compact": ("control", "Compact an agent's context now"),
    "undo": ("control", "Undo an agent's last compaction"),
    "redo": ("control", "Reapply the last undone compaction"),
    "steer": ("control", "Send an agent a message"),
    "approve": ("control", "Allow a waiting tool call, or show what it would do"),
    "deny": ("control", "Refuse a waiting tool call"),
    "grants": ("control", "List what runs without a question, or revoke it"),
    "budget": ("control", "Set or lift a budget of a session or a task"),
    "sessions": ("show", "List every session"),
    "show": ("show", "Show the whole state of a session"),
    "usage": ("show", "What all sessions used and cost, by day, week, month, model or project"),
    "rename": ("library", "Give a session a title"),
    "tag": ("library", "Add tags to a session, or remove them"),
    "fork": ("library", "Make a new session from any step of another"),
    "delete": ("library", "Delete a session; it can be restored for seven days"),
    "restore": ("library", "Restore a deleted session"),
    "prune": ("library", "Permanently delete finished sessions and free space"),
    "backup": ("library", "Copy the database, safely while runs are active"),
    "diff": ("show", "Show what agents changed in their worktrees"),
    "artifacts": ("show", "List what a session produced, or print one"),
    "import": ("imports", "Import sessions of Claude Code, Codex and OpenCode"),
    "hooks": ("interop", "Show sessions in other terminals live, and answer Claude Code's questions"),
    "export": ("show", "Write a whole session into one file: a web page, Markdown, or JSON"),
    "memory": ("memory", "Status, sync and search of what agents remember"),
    "agent": ("memory", "Reports on agents"),
    "mcp": ("interop", "Serve sessions to agents and editors over MCP"),
    "doctor": ("models", "Check this installation and the database"),
    "completion": ("app", "Print shell completion for bash, zsh or fish"),
    "host": ("headless", "Drive a session (started by the other commands)"),
    "follow": ("imports", "Import new log lines of other programs (started by `wk watch`)"),
}
HIDDEN = frozenset({"host", "follow"})
DRIVING = frozenset({"demo", "run", "resume", "host"})
"""Commands whose exit code 5 says that a session can be resumed."""


class LazyGroup(click.Group):
    """Knows each command's name and summary, and loads its module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"watchkeeper.cli.{COMMANDS[cmd_name][0]}")
        # A function cannot be called `import`.
        command: click.Command = getattr(module, f"{cmd_name}_" if cmd_name == "import" else cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            hint = f"; did you mean `wk {near[0]}`?" if near else ""
            raise click.UsageError(f"unknown command {name!r}{hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="watchkeeper", message="watchkeeper %(version)s")
@click.pass_context
def wk(ctx: click.Context) -> None:
    """Run long multi-agent LLM work durably, and watch it live.

    Everything is kept in one SQLite file: kill the process at any moment, and `wk resume last` continues from
    the last saved step. `wk` alone opens the dashboard. SESSION and AGENT take a unique prefix. `last`
    is, for commands that act, the newest run of Watchkeeper itself; for commands that look, the session active last.
    """
    if ctx.invoked_subcommand is None:
        from watchkeeper.cli.watch import watch

        ctx.invoke(watch)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print completion for a shell. For bash: eval "$(wk completion bash)" in ~/.bashrc."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(wk, {}, "wk", "_WK_COMPLETE").source())
    return 0


def run(arguments: Sequence[str]) -> int:
    """Run `wk ARGUMENTS`; returns the exit code. No traceback reaches a user."""
    try:
        outcome = wk.main(list(arguments), prog_name="wk", standalone_mode=False, obj=tuple(arguments))
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "wk"
        return _fail(f"{error.format_message().rstrip('.')} (see `{where} --help`)", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except WatchkeeperError as error:
        drives = isinstance(error, HostFault) and next(iter(arguments), "") in DRIVING
        return _fail(str(error), HostFault.exit_code if drives else error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except SystemExit as stop:
        # Click exits so when the reader of a pipe has closed it (`wk show | head`); that is no failure.
        reader_left = type(sys.stdout) is click.utils.PacifyFlushWrapper
        return 0 if reader_left else int(stop.code or 0)
    except Exception as error:
        if os.environ.get("WATCHKEEPER_DEBUG"):
            raise
        if (fault := host_fault(error)) is not None:
            code = HostFault.exit_code if next(iter(arguments), "") in DRIVING else BadInput.exit_code
            return _fail(f"{fault}, then try again", code)
        if isinstance(error, ImportError):
            return _fail(explain_import(error), BadInput.exit_code)
        if isinstance(error, UnicodeEncodeError) and (odd := [one for one in arguments if not _is_text(one)]):
            return _fail(
                f"the argument {odd[0]!a} is not valid UTF-8 text; name it by an id, or in other letters", 2
            )
        if damage := _damage_in(arguments):
            return _fail(damage, 2)
        return _fail(
            f"an internal error of Watchkeeper: {type(error).__name__}: {error}; set WATCHKEEPER_DEBUG=1 to see where",
            1,
        )
    return outcome if isinstance(outcome, int) else 0


def _is_text(argument: str) -> bool:
    """Whether an argument is valid UTF-8; names of files need not be."""
    return not any("\ud800" <= character <= "\udfff" for character in argument)


def _damage_in(arguments: Sequence[str]) -> str | None:
    """One line about a damaged value in the database of a failed command, or None if every value is sound."""
    from watchkeeper.cli.options import database_path
    from watchkeeper.store import database
    from watchkeeper.store.database import first_odd_value

    named = [value for name, value in itertools.pairwise(arguments) if name == "--db"]
    named += [one.removeprefix("--db=") for one in arguments if one.startswith("--db=")]
    path = database_path(Path(named[-1]) if named else None)
    try:
        connection = database.open_readonly(path)
        try:
            odd = first_odd_value(connection)
        finally:
            connection.close()
    except Exception:  # the database cannot be read either: the first error is the one to report
        return None
    return (
        f"{path} is damaged: it holds a value that cannot be read ({odd}); go back to a backup (`wk doctor`)"
        if odd
        else None
    )


def _fail(message: str, code: int) -> int:
    """Print an error on one line; returns the exit code."""
    print(f"wk: {one_line(message, 20_000)}", file=sys.stderr)
    return code
