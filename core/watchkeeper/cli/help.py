"""Commands whose help begins with examples, and one line for each mistake in how a command is called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import click

COMMENT = " # "
"""Separates the command of an example from what it does."""


def say_renamed(old: str, new: str) -> None:
    """Print on standard error what a command is called now."""
    click.echo(f"wk: `wk {old}` is now `wk {new}`", err=True)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write examples, with their comments below each other."""
    parts = [[part.strip() for part in example.partition(COMMENT)] for example in examples]
    width = max((len(line) for line, _, _ in parts), default=0)
    if not parts:
        return
    with formatter.section("Examples"):
        for line, mark, what in parts:
            formatter.write(f"  {f'{line:<{width}}  {mark} {what}'.rstrip()}\n")


class Command(click.Command):
    """A command whose help begins with `examples`: a command line each, then `COMMENT` and what it does."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # Click's parser leaves it out for an option's missing value
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            write_examples(formatter, self.examples)
            formatter.write_paragraph()
        super().format_help(ctx, formatter)


class Group(Command, click.Group):
    """A group of commands whose help begins with examples."""

    command_class = Command


# What is wrong with how a command was called, and what to do.

_RANGE = re.compile(r"^(.*) is not in the range .*\.$")
_NO_PATH = re.compile(r"^(?:Path|File|Directory) '(.*)' does not exist\.?$")
_EXTRA = re.compile(r"^Got unexpected extra arguments? \((.*)\)\.?$")
_WANTED = {"integer": "an integer", "float": "a number", "boolean": "yes or no"}


def unknown_command(name: str, parent: str, known: Iterable[str]) -> str:
    """One line about a command that does not exist, with the name that is most like it."""
    near = get_close_matches(name, sorted(known), 1)
    return f"unknown command {name!r}" + (f"; did you mean `{parent} {near[0]}`?" if near else "")


def usage_text(error: click.UsageError) -> str:
    """One line about a mistake in a command line: what is wrong, what to give, and where the help is."""
    context = error.ctx
    where = context.command_path if context is not None else "wk"
    return f"{_mistake(error, context, where).rstrip('.')} (see `{where} --help`)"


def _mistake(error: click.UsageError, context: click.Context | None, where: str) -> str:
    said = error.format_message()
    if isinstance(error, click.MissingParameter) and error.param is not None and context is not None:
        return f"{_named(error.param, context)} is missing; usage: {_usage(context)}"
    if isinstance(error, click.BadParameter):
        if error.param is None or context is None:
            return error.message
        return f"{_named(error.param, context)}: {_value_text(error.message, error.param, context)}"
    if isinstance(error, click.NoSuchOption):
        near = get_close_matches(
            error.option_name, [one for each in _options(context) for one in each.opts], 1, 0.7
        )
        return f"unknown option {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if isinstance(error, click.BadOptionUsage):
        option = next((one for one in _options(context) if error.option_name in one.opts), None)
        if option is not None and context is not None:
            if option.is_flag:
                return f"{error.option_name} takes no value"
            return f"{error.option_name} needs a value: {error.option_name} {option.make_metavar(context)}"
        return said
    name = getattr(error, "command_name", None)  # of `click.NoSuchCommand`, which older versions do not have
    if name is not None and context is not None and isinstance(context.command, click.Group):
        return unknown_command(name, where, context.command.list_commands(context))
    if (extra := _EXTRA.match(said)) and context is not None:
        return f"unexpected argument {extra[1]!r}; usage: {_usage(context)}"
    return said


def _value_text(message: str, param: click.Parameter, context: click.Context) -> str:
    """What is wrong with the value of an option or an argument, and which values are possible."""
    kind = param.type
    if (found := _RANGE.match(message)) and isinstance(kind, click.IntRange | click.FloatRange):
        return f"{found[1]} is out of range; use {_range_text(kind)}"
    if message.endswith(f" is not a valid {kind.name}."):
        wanted = _WANTED.get(kind.name.removesuffix(" range"), kind.name)
        return f"{message.removesuffix(f' is not a valid {kind.name}.')} is not {wanted}"
    if isinstance(kind, click.Choice) and " is not one of " in message:
        *others, last = map(str, kind.choices)
        wanted = f"{', '.join(others)} or {last}" if others else last
        return f"{message.partition(' is not one of ')[0]} is not a valid value; use {wanted}"
    if found := _NO_PATH.match(message):
        return f"{found[1]} does not exist; give an existing path"
    return message


def _range_text(kind: click.IntRange | click.FloatRange) -> str:
    low, high = kind.min, kind.max
    if high is None:
        return f"a number above {low}" if kind.min_open else f"{low} or more"
    return f"a number from {low} to {high}" if low is not None else f"{high} or less"


def _named(param: click.Parameter, context: click.Context) -> str:
    """An option as people write it, or an argument as the usage has it."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name.strip("[].")


def _usage(context: click.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _options(context: click.Context | None) -> list[click.Option]:
    params = context.command.params if context is not None else []
    return [one for one in params if isinstance(one, click.Option)]
