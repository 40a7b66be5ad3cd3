"""The command `wk`. Its subcommands load when they are called; every error is one line, with an exit code."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click

from watchkeeper.cli.help import Command, Group, say_renamed, unknown_command, usage_text, write_examples
from watchkeeper.records.errors import BadInput, HostFault, WatchkeeperError, explain_import, host_fault
from watchkeeper.records.readers import some_labels
from watchkeeper.records.text import one_line  # early: a process without descriptors can load nothing more

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "start": {
        "run": ("run", "Start a session: a planner and its sub-agents work towards a goal"),
        "demo": ("run", "Try it: agents survey a folder, with no key and no network"),
        "resume": ("run", "Continue from the last saved step"),
        "worker": ("worker", "Run queued sessions on this machine, or queue one"),
    },
    "act": {
        "approve": ("control", "Allow a pending tool call, or show what it would do"),
        "deny": ("control", "Deny a pending tool call"),
        "steer": ("control", "Send an agent a message"),
        "pause": ("control", "Pause a session, or one agent"),
        "cancel": ("control", "End a session, or one agent's task, permanently"),
        "rerun": ("control", "Run a task again"),
        "plan": ("control", "Add, revise or drop a task in the plan"),
        "budget": ("control", "Set or remove a budget for a session or task"),
        "compact": ("control", "Compact an agent's context now"),
        "undo": ("control", "Undo an agent's last compaction"),
        "redo": ("control", "Reapply the last undone compaction"),
    },
    "look": {
        "watch": ("watch", "Watch a session live, or browse a finished one"),
        "sessions": ("show", "List every session"),
        "show": ("show", "Show the full state of a session"),
        "usage": ("show", "Show tokens and cost by day, week, month, model or project"),
        "artifacts": ("show", "List or print what a session produced, or show its changes"),
        "export": ("show", "Write a session to one file: a web page, Markdown or JSON"),
        "memory": ("memory", "Show, search, save and edit what agents remember"),
        "agent": ("memory", "Report what each agent did"),
        "serve": ("serve", "Show the dashboard in a browser"),
    },
    "keep": {
        "import": ("imports", f"Import sessions from {some_labels()}"),
        "edit": ("library", "Change the title or tags of a session"),
        "fork": ("library", "Create a new session from any step of another"),
        "delete": ("library", "Delete a session, restore it, or free its space"),
        "backup": ("library", "Copy the database; safe while runs are active"),
    },
    "set up": {
        "models": ("models", "List the available models, with prices"),
        "doctor": ("models", "Check this installation and the database"),
        "hooks": ("interop", "Show sessions in other terminals and answer their questions"),
        "mcp": ("interop", "Serve sessions to agents and editors over MCP"),
        "completion": ("app", "Print shell completion for bash, zsh or fish"),
        "help": ("app", "Describe a group of commands, or one command"),
    },
}
"""The commands of people: for each the module that has it, and what it does."""
RENAMED = {
    "restore": ("delete", "--restore"),
    "prune": ("delete", "--prune"),
    "grants": ("approve", "--grants"),
    "workers": ("worker", "--list"),
    "diff": ("artifacts", "--diff"),
}
"""Earlier names of commands: what is called in their place, with the same arguments."""
RESHAPED = {"rename": "edit SESSION --title TITLE", "tag": "edit SESSION --tag TAG"}
"""Earlier names of commands that had other arguments than those that replace them."""
HIDDEN = {
    "rename": ("library", "Give a session a title (now `wk edit --title`)"),
    "tag": ("library", "Add or remove tags (now `wk edit --tag`)"),
    "host": ("headless", "Run a session (used internally by other commands)"),
    "follow": ("imports", "Import new log lines from other programs (started by `wk watch`)"),
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()} | HIDDEN
DRIVING = frozenset({"demo", "run", "resume", "host"})
"""Commands whose exit code 5 says that a session can be resumed."""


class LazyGroup(Group):
    """Knows each command's name and summary, and loads its module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"watchkeeper.cli.{COMMANDS[cmd_name][0]}")
        # A function cannot be called `import`, and `help` is Python's.
        command: click.Command = getattr(
            module, f"{cmd_name}_" if cmd_name in ("import", "help") else cmd_name
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(group, " ".join(commands)) for group, commands in GROUPS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in RENAMED:
            args = [*RENAMED[name], *args[1:]]
        elif name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(
                unknown_command(
                    name, "wk", [*(each for group in GROUPS.values() for each in group), *RENAMED]
                )
            )
        new = " ".join(RENAMED[name]) if name in RENAMED else RESHAPED.get(name)
        if new is not None and not ctx.resilient_parsing:
            say_renamed(name, new)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        "wk demo                          # try it: no key, no network",
        'wk run "Fix the failing tests"   # start a run, and watch it',
    ),
    epilog="`wk help GROUP` describes a group, `wk help COMMAND` one command.",
)
@click.version_option(package_name="watchkeeper", message="watchkeeper %(version)s")
@click.pass_context
def wk(ctx: click.Context) -> int:
    """Run long multi-agent LLM work durably, and watch it live. Everything is stored in one SQLite file: after a
    crash, `wk resume last` continues from the last saved step. `wk` alone opens the live session, or the list.
    """
    if ctx.invoked_subcommand is None:
        from watchkeeper.cli.watch import open_default

        return open_default()
    return 0


@click.command(
    "help",
    cls=Command,
    examples=("wk help act # the commands that change a run", "wk help memory search # one command"),
)
@click.argument("words", nargs=-1, metavar="[GROUP|COMMAND]")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> int:
    """Describe the commands of GROUP (start, act, look, keep, set up), or one COMMAND."""
    root = ctx.find_root()
    name = " ".join(words).replace("-", " ").replace("setup", "set up")
    if name in GROUPS:
        formatter = root.make_formatter()
        first = [wk.get_command(root, one) for one in list(GROUPS[name])[:2]]
        write_examples(formatter, [one.examples[0] for one in first if isinstance(one, Command)])
        with formatter.section(f"Commands to {name}"):
            formatter.write_dl([(one, about) for one, (_, about) in GROUPS[name].items()])
        click.echo(formatter.getvalue().rstrip())
        click.echo("\n`wk help COMMAND` describes one command.")
        return 0
    wk.main([*words, "--help"], prog_name="wk", standalone_mode=False)
    return 0


@click.command(
    cls=Command,
    examples=('eval "$(wk completion bash)" # in ~/.bashrc', "wk completion fish # print the script"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script for a shell."""
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
        return _fail(usage_text(error), 2)
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
            return _fail(f"the argument {odd[0]!a} is not valid UTF-8; use an id or another name", 2)
        if damage := _damage_in(arguments):
            return _fail(damage, 2)
        return _fail(
            f"internal error: {type(error).__name__}: {error}; set WATCHKEEPER_DEBUG=1 for a traceback",
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
        f"{path} is damaged: it contains an unreadable value ({odd}); restore a backup (see `wk doctor`)"
        if odd
        else None
    )


def _fail(message: str, code: int) -> int:
    """Print an error on one line; returns the exit code."""
    print(f"wk: {one_line(message, 20_000)}", file=sys.stderr)
    return code
