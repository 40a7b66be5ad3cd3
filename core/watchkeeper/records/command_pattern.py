"""Patterns of shell commands that a person allowed once and for all.

A pattern is a list of words; `*` as its last word stands for any further arguments. It matches one simple
command that consists of these very words. Whatever a shell would interpret is no such command: operators,
redirections, substitutions, variables, globs, assignments, reserved words. The parser refuses in case of
doubt, quoted or not; the question is then asked.

What matches is run as these words, without a shell: no function, alias, variable or `PATH` that an earlier
command of the agent's shell defined can change what it runs. See `worker_shell.Shell`.
"""

from __future__ import annotations

import os
import shlex
import shutil

from watchkeeper.records.text import reveal

_INTERPRETED = frozenset(";&|<>`$\\\n\r\t(){}[]*?!#^")
"""Characters that mean something to a shell in some place. `^` is an old pipe, `!` negates, `#` comments."""

_RESERVED = "if then else elif fi do done case esac while until for in function select coproc time"
_OF_THE_SHELL = (
    "eval exec source . command builtin alias unalias export declare typeset local readonly set unset shopt"
    " trap enable hash"
    " cd pushd popd dirs umask ulimit return exit break continue shift getopts read mapfile readarray let"
    " wait jobs fg bg disown"
    " suspend logout history fc bind complete compgen compopt caller times"
)
"""Built-in commands that act on the shell itself, or run what they are given."""
_LAUNCHERS = (
    "sudo su doas pkexec runuser setpriv env xargs nohup nice ionice chroot unshare nsenter setsid stdbuf"
    " timeout watch script"
    " sh bash dash zsh ksh mksh fish csh tcsh busybox ssh parallel entr strace ltrace gdb"
)
"""Programs that run another program that they are given."""
_ALWAYS_ASK = frozenset(f"{_RESERVED} {_OF_THE_SHELL} {_LAUNCHERS}".split())


def parse_command(command: str) -> tuple[str, ...] | None:
    """The words of `command` if it is plainly one simple command of a program and its arguments; else
    None."""
    if not command.isascii() or not command.isprintable() or _INTERPRETED.intersection(command):
        # Letters of other scripts may look like these; a person cannot tell them apart in a pattern.
        return None
    try:
        words = tuple(shlex.split(command, posix=True))
    except ValueError:
        return None
    if not words or not words[0] or "=" in words[0] or words[0].startswith(("-", "%", "~")):
        return None
    if os.path.basename(words[0]) in _ALWAYS_ASK:
        return None
    # A tilde at the beginning of a word, or after : and = in one, stands for a folder.
    if any(word.startswith("~") or ":~" in word or "=~" in word for word in words):
        return None
    return words


def parse_pattern(pattern: str) -> tuple[str, ...]:
    """The words of a pattern.

    Raises:
        ValueError: a line that says why it can match nothing.
    """
    text = pattern.strip()
    open_ended = text.endswith(" *")
    words = parse_command(text[:-2].rstrip() if open_ended else text)
    if text == "*":
        raise ValueError("the pattern * would match every command; allow the tool instead")
    if words is None:
        raise ValueError(
            f"the pattern {reveal(text)!r} matches nothing: it must be the words of one simple command, with"
            " * as its last word"
            " for any further arguments"
        )
    return (*words, "*") if open_ended else words


def pattern_of(words: tuple[str, ...]) -> str:
    """The text of a pattern that `parse_pattern` reads as these words."""
    if words[-1] == "*":
        return f"{shlex.join(words[:-1])} *"
    return shlex.join(words)


def matches(pattern: str, command: str) -> tuple[str, ...] | None:
    """The words that `command` runs if the pattern allows it; else None. A pattern that is none matches
    nothing."""
    words = parse_command(command)
    if words is None:
        return None
    try:
        wanted = parse_pattern(pattern)
    except ValueError:
        return None
    if wanted[-1] == "*":
        return words if words[: len(wanted) - 1] == wanted[:-1] else None
    return words if words == wanted else None


def program_path(program: str, folder: str, workspace: str, search_path: str) -> str | None:
    """The absolute path of the program that the first word of a command names, or None where that is not
    certain.

    A relative path names another program in another folder, so it counts in the workspace alone; relative
    entries of the search path do not count at all.
    """
    if "/" in program:
        if not os.path.isabs(program) and os.path.realpath(folder) != os.path.realpath(workspace):
            return None
        found = os.path.join(folder, program)
        return found if os.path.isfile(found) and os.access(found, os.X_OK) else None
    places = [place for place in search_path.split(os.pathsep) if os.path.isabs(place)]
    return shutil.which(program, path=os.pathsep.join(places)) if places else None
