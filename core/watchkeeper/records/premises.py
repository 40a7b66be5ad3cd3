"""What an answer of a person rests on: where the call would run, in which shell, and the files that decide what it does.

A question stores its premises. Just before the call runs they are read again. If one differs, the call does not run, and
the person is asked again with the difference.

The files of a command are those of its simple commands: the first word, if it is a file of the workspace or a path relative to
the folder, and the script that an interpreter is given. Words that only a shell can resolve (variables, globs, `~`,
programs of the search path) name none.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.records.tool_inputs import INTERPRETERS, Protected, open_regular, starts_others

MOST_TEXT_BYTES = 128 * 1024
"""A longer file is kept as its digest alone, so its difference cannot be shown."""
MOST_FILES = 20
"""Files of one call that are looked at."""
ABSENT = "absent"
"""In the place of a digest: there is no such file."""
UNREADABLE = "unreadable"
"""In the place of a digest: it is no file that can be read."""

_SHELLS = re.compile(r"(?:ba|da|z|k|mk|a|fi|rba)?sh\Z")
_OPERATORS = frozenset("();<>|&")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_PREFIXES = frozenset(
    [
        *("if", "then", "else", "elif", "do", "while", "until", "time", "!", "{", "exec", "command", "builtin", "eval", "sudo"),
        *("doas", "env", "xargs", "nohup", "nice", "ionice", "setsid", "stdbuf", "timeout", "chroot", "coproc", "watch", "find"),
    ]
)  # fmt: skip
"""Words before a command, and programs that start the one that they are given."""
_MOST_DEPTH = 3
_PROGRAM, _SCRIPT, _CODE = "program", "script", "code"
"""What a word of a command is: a program, a file for an interpreter, or commands for a shell."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file as it was."""

    digest: str
    """The digest of its target and bytes; `ABSENT` or `UNREADABLE`."""
    text: str | None
    """None where it is no short text."""


@dataclass(frozen=True, slots=True)
class Premises:
    """What was so when a question was asked."""

    folder: str | None
    """Where a command would run; None: unknown, or the call has no folder."""
    shell: str | None
    """Which process the agent's shell is; empty: it had none yet; None: the call needs none."""
    files: Mapping[str, FileState] = field(default_factory=dict)
    """By absolute path."""
    difference: str = ""
    """How these premises differ from those of the question before, where that is why it is asked."""

    def encoded(self) -> dict[str, Any]:
        files = {name: [state.digest, state.text] for name, state in self.files.items()}
        return {"folder": self.folder, "shell": self.shell, "files": files, "difference": self.difference}

    @classmethod
    def decoded(cls, value: Any) -> Premises | None:
        """The premises of a stored question; None for one that has none."""
        if not isinstance(value, dict):
            return None
        files = {name: FileState(digest, text) for name, (digest, text) in value["files"].items()}
        return cls(value["folder"], value["shell"], files, value["difference"])

    def changed_files(self, now: Premises) -> list[str]:
        """The files of both that are not the same any more."""
        return [
            name
            for name, state in self.files.items()
            if name in now.files and now.files[name].digest != state.digest
        ]


def file_digest(path: str) -> str:
    """Identifies a file and what it holds, links followed."""
    return _read(path, frozenset())[0]


def read_files(
    names: Iterable[str], redact: Callable[[str], str], protected: Protected = frozenset()
) -> dict[str, FileState]:
    """The present state of these files. A file of `protected` is not opened: closing it would drop the locks that this
    process has on it."""
    found: dict[str, FileState] = {}
    for name in names:
        digest, data = _read(name, protected)
        text: str | None = "" if digest == ABSENT else None
        if data is not None and b"\0" not in data:
            try:
                text = redact(data.decode("utf-8"))
            except UnicodeDecodeError:
                text = None
        found[name] = FileState(digest, text)
        if len(found) == MOST_FILES:
            break
    return found


def _read(path: str, protected: Protected) -> tuple[str, bytes | None]:
    """The digest of a file, and its bytes if they are few."""
    target = Path(os.path.realpath(path))
    try:
        descriptor = open_regular(target, protected)
    except FileNotFoundError:
        return ABSENT, None
    except (OSError, ValueError):
        return UNREADABLE, None
    with os.fdopen(descriptor, "rb") as file:
        state = hashlib.sha256(os.fsencode(target) + b"\0")
        first = file.read(MOST_TEXT_BYTES + 1)
        block = first
        while block:
            state.update(block)
            block = file.read(1024 * 1024)
    return state.hexdigest(), first if len(first) <= MOST_TEXT_BYTES else None


# --- The files of a command ---------------------------------------------------------------------------------


def command_files(command: str, folder: str, workspace: str) -> list[str]:
    """The absolute paths of the files of the workspace, or named from the folder, that a command runs."""
    return list(dict.fromkeys(_files(command, folder, workspace, 0)))


def _files(command: str, folder: str, workspace: str, depth: int) -> Iterator[str]:
    at = folder
    for words in _simple_commands(command):
        if words[0] in ("cd", "pushd") and len(words) == 2:
            at = os.path.normpath(os.path.join(at, words[1]))
            continue
        for kind, word in _run_by(words, at):
            if kind is _CODE:
                if depth < _MOST_DEPTH:
                    yield from _files(word, at, workspace, depth + 1)
            elif (kind is _SCRIPT or os.sep in word) and (found := _of_workspace(word, at, workspace)):
                yield found


def _simple_commands(command: str) -> Iterator[list[str]]:
    """The words of each simple command, as far as they can be recognised without a shell."""
    text = command.replace("\\\n", " ").replace("\n", " ; ").replace("`", " ; ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:  # an open quote, as in a here-document
        tokens = text.replace(";", " ; ").split()
    for number, token in enumerate(tokens):
        if token in ("<", ">", ">>", ">&", "<&", "&>", ">|"):
            continue  # what follows is read or written: a script on standard input is one too
        if token and _OPERATORS.issuperset(token):
            if words:
                yield words
            words = []
        elif (number and tokens[number - 1] in (">", ">>", ">&", "&>", ">|", "<&")) or (
            not words and (_ASSIGNMENT.match(token) or token == "$")
        ):
            continue
        else:
            words.append(token)
    if words:
        yield words


def _run_by(words: list[str], folder: str) -> Iterator[tuple[str, str]]:
    """What a simple command runs, each with its kind."""
    program, rest = os.path.basename(words[0]) or words[0], words[1:]
    yield _PROGRAM, words[0]
    if program == "eval":
        yield _CODE, " ".join(rest)
    elif INTERPRETERS.match(program):
        yield from _scripts(rest, folder, is_shell=_SHELLS.match(program) is not None)
    elif program in _PREFIXES or starts_others(tuple(words)):
        for at, word in enumerate(rest):
            if not _ASSIGNMENT.match(word) and not word.startswith("-"):
                yield _PROGRAM, word
                if word != "." and INTERPRETERS.match(os.path.basename(word)):
                    yield from _run_by(rest[at:], folder)
                    return


def _scripts(words: list[str], folder: str, *, is_shell: bool) -> Iterator[tuple[str, str]]:
    """The script that an interpreter is given: each word up to the first file that is no option's value."""
    is_value = False
    for at, word in enumerate(words):
        if not word.startswith("-") or word == "-":
            if words[at - 1 : at] == ["-m"]:  # a module of Python
                path = word.replace(".", os.sep)
                yield from ((_SCRIPT, f"{path}.py"), (_SCRIPT, f"{path}/__main__.py"))
                return
            yield _SCRIPT, word
            if not is_value and os.path.isfile(os.path.join(folder, word)):
                return
            is_value = False
            continue
        is_value = True
        if is_shell and not word.startswith("--") and "c" in word:
            yield _CODE, next((one for one in words[at + 1 :] if not one.startswith("-")), "")
            return
        attached = word.partition("=")[2] or ("" if word.startswith("--") else word[2:])
        if attached:
            yield _SCRIPT, attached


def _of_workspace(word: str, folder: str, workspace: str) -> str | None:
    """The path of a file that a word names, if a change of it could matter here."""
    word = word.replace("${PWD}", folder).replace("$PWD", folder)
    if not word or "\0" in word or word.startswith("~") or "$" in word or len(word) > 4096:
        return None
    path = os.path.normpath(os.path.join(folder, word))
    root = os.path.realpath(workspace)
    is_inside = any(f"{one}{os.sep}".startswith(f"{root}{os.sep}") for one in (path, os.path.realpath(path)))
    if os.path.isabs(word) and not is_inside:
        return None
    is_named = os.sep in word or "." in word  # a bare word is a program of the search path, or a value
    return path if os.path.isfile(path) or (is_named and not os.path.isdir(path)) else None
