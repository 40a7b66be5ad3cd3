"""What a tool call does, read from the keys of its input, as every agent program names its tools differently; and what of it
a person allowed.

A person allows shell commands by a pattern: words, of which `*` as the last one matches any further arguments. It
matches a simple command that consists of these very words, or a pipeline of which each part does; variables of
`VARIABLES` may be set before a part, and `2>&1` may stand before a pipe. A command that a shell would interpret otherwise
never matches: other operators, redirections, substitutions, variables, globs, reserved words. The parser refuses in case
of doubt, quoted or not; then the agent asks.

A matching command runs as these words, without a shell: no function, alias, variable or `PATH` that an
earlier command of the agent's shell defined can change what it runs. See `agents.tools.worker.Shell`.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records.text import lazily, reveal

PATH_KEYS = ("file_path", "path", "filePath", "notebook_path", "filename", "target_file")
EDIT_KEYS = frozenset(
    [
        "old_string", "new_string", "oldString", "newString", "content", "contents", "edits", "new_str", "old_str",
        "new_source", "patch", "diff", "file_text", "insert_text",
    ]
)  # fmt: skip
"""With a path, one of these in an input says that the call writes the file."""

PATCHED = lazily(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$|^\*\*\* Move to: (.+)$", re.MULTILINE)
"""The files of a patch in the form of Codex."""
_PATCH_CHARACTERS = 400_000


EXTENSIONS = (
    "pyi?|ipynb|[cm]?js|jsx|tsx?|rs|go|java|kt|scala|cc?|h|[ch]pp|cs|rb|php|swift|lua|r|jl|(?:ba|z)?sh|ps1|sql|html?|s?css"
    "|vue|svelte|md|rst|txt|jsonl?|ya?ml|toml|ini|cfg|conf|env|lock|xml|[ct]sv|log|diff|patch|png|jpe?g|gif|svg|webp|pdf"
    "|zip|gz|tar|whl|db|sqlite|proto|graphql|tf|dockerfile|make|cmake|gradle"
)
"""What makes a word with a dot a file name, and not an attribute or the end of a sentence."""

PATH = lazily(
    r"(?<![\w/.:@<\[-])(?:(?:~|\.{1,2})?/(?:[\w.@+-]{1,80}/){1,16}[\w.@+-]{1,80}"  # /a/b, ./a/b, ~/a/b
    r"|(?:[\w.@+-]{1,80}/){2,16}[\w.@+-]{1,80}"  # a/b/c
    rf"|(?:~/|\.{{1,2}}/|/)?(?:[\w.@+-]{{1,80}}/)?[\w@+-][\w.@+-]{{0,80}}\.(?:{EXTENSIONS}))(?![\w/(])",
    re.IGNORECASE,
)
"""Paths of two parts and more, and file names by their extension."""


def leaves(value: Any) -> Iterator[str]:
    """The string leaves of JSON-like data, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def path_of(given: Mapping[str, Any]) -> str:
    """The file or folder that an input names, or an empty text."""
    return next((value for key in PATH_KEYS if isinstance(value := given.get(key), str) and value), "")


def edited_files(given: Any) -> tuple[str, ...]:
    """The files that a call with this input writes, as the input names them; none for a shell command."""
    if not isinstance(given, Mapping):
        return ()
    path = path_of(given)
    if path and not EDIT_KEYS.isdisjoint(given):
        return (path,)
    found: dict[str, None] = {}
    for leaf in leaves(given):
        if "*** Begin Patch" in leaf[:2_000]:
            for before, after in PATCHED.findall(leaf[:_PATCH_CHARACTERS]):
                found[(before or after).strip()] = None
    changes = given.get("changes")  # of Codex: the path of each changed file
    if isinstance(changes, Mapping):
        found |= dict.fromkeys(str(name) for name in changes)
    elif isinstance(changes, list):
        named = (one.get("path") for one in changes if isinstance(one, Mapping))
        found |= {name: None for name in named if isinstance(name, str)}
    return tuple(found)


def edited_places(folder: Path, given: Any) -> list[str]:
    """The files that a call with this input writes, by their real paths."""
    return [os.path.realpath(folder / name) for name in edited_files(given) if "\0" not in name]


def argument_text(value: Any) -> str:
    """A text, or a command given as a list of words (`["bash", "-lc", "make"]`)."""
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value[2:] if len(value) > 2 and value[1] in ("-c", "-lc") else value)
    return value if isinstance(value, str) else ""


def command_of(given: Any) -> str:
    """The shell command that an input holds, or an empty text."""
    if not isinstance(given, Mapping):
        return ""
    return next((text for key in ("command", "cmd", "script") if (text := argument_text(given.get(key)))), "")


# --- What a person allows: commands by their pattern, changes of files by what they change --------------

VARIABLES = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "CI", "NO_COLOR", "LANG", "LC_ALL", "TZ")
"""What a command may set for a program without a question."""


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One part of a pipeline. In a pattern, the last word may be `*`."""

    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Set for it alone, in their order."""
    joins_errors: bool = False
    """Its errors go into the pipe too (`2>&1`)."""


Pipeline = tuple[SimpleCommand, ...]
"""Simple commands, each of which reads what the one before it prints."""

_JOINED = " 2>&1"
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=((?:[^ '\"]|'[^']*'|\"[^\"]*\")*)(?: +|\Z)", re.ASCII)

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


_STARTERS = frozenset(
    [
        "rbash", "ash", "flock", "taskset", "prlimit", "chrt", "systemd-run", "tmux", "screen", "docker", "podman", "at",
        "batch", "wk", "watchkeeper", "uvx", "npx",
    ]
)  # fmt: skip
"""Further programs that start others: a pattern allows a whole command of theirs, and none with `*`."""

_NAMING_OPTION_NAMES = (
    "output outfile outdir out-file out-dir output-file output-directory log-file logfile dump-header cookie-jar"
    " save-cookies trace trace-ascii stderr junitxml junit-xml report-file report-log append-output index-output"
    " directory-prefix target-dir target-directory temporary-directory backup-dir fprint fprint0 fprintf fls"
    " exec execdir exec-batch exec-path ok okdir toolexec vettool ext-diff textconv extcmd tool upload-pack"
    " receive-pack rsync-path rsh pager open-files-in-pager editor to-command use-compress-program"
    " compress-program checkpoint-action info-script new-volume-script index-command pre hostname-bin"
    " config init-command plugin require import eval script-shell program command shell"
)
"""Long options that name a file to write, or a program or code to run. Programs take their beginnings too."""
_NAMING_OPTIONS = frozenset(_NAMING_OPTION_NAMES.split())
_NAMING_PARTS = frozenset(
    [
        "output",
        "outfile",
        "outdir",
        "exec",
        "execute",
        "pager",
        "editor",
        "command",
        "cmd",
        "program",
        "shell",
    ]
)
"""Parts of the names of further such options."""
_NAMING_LETTERS = {
    "git": "oOxcu", "sort": "oT", "curl": "oOcDKT", "wget": "oaOPi", "tar": "IFfO", "rsync": "e", "rg": "", "grep": "",
    "egrep": "", "fgrep": "", "ls": "", "ps": "", "fd": "xX", "python": "oc", "python3": "oc", "node": "oerp",
    "perl": "oe", "ruby": "oer", "pytest": "opc", "make": "oCf", "sed": "ifE", "awk": "oefil", "gawk": "oefil",
}  # fmt: skip
"""Letters of such options, by program; `o` for every other."""


def naming_option(program: str, word: str) -> str:
    """The name of the option that `word` gives if it names a file to write or a program to run; else empty. In case
    of doubt it does."""
    if not word.startswith("-") or word.strip("-") == "":
        return ""
    name = word.split("=", 1)[0]
    plain = name.lstrip("-").lower().replace("_", "-")
    if plain in _NAMING_OPTIONS:
        return name
    if name.startswith("--"):
        if plain.startswith("no-"):
            return ""
        begins = any(option.startswith(plain) for option in _NAMING_OPTIONS)
        parts = plain.split("-")
        part = any(one in _NAMING_PARTS for one in parts) or (
            len(parts) > 1 and len(parts[-1]) > 2 and any(one.startswith(parts[-1]) for one in _NAMING_PARTS)
        )
        return name if begins or part else ""
    letters = _NAMING_LETTERS.get(program, _NAMING_LETTERS.get(program.rstrip("0123456789.")))
    if letters is None:  # attached to its value, or among a few letters
        return name if word[1] == "o" or (len(word) <= 4 and "o" in word and word[1:].isalpha()) else ""
    return name if set(letters).intersection(word[1:]) else ""


def starts_others(words: tuple[str, ...]) -> bool:
    """Whether a command of these words starts another program that its arguments name."""
    program = os.path.basename(words[0])
    return program in _STARTERS or (program in ("uv", "pipx", "poetry") and "run" in words[1:])


INTERPRETERS = re.compile(
    r"(?:python|pypy|node|deno|bun|ruby|perl|php|lua|luajit|Rscript|julia|tclsh|wish|expect|pwsh|java"
    r"|(?:ba|da|z|k|mk|a|fi|rba|c|tc)?sh|busybox|source|\.|osascript|groovy|scala|elixir|guile|racket|sbcl"
    r"|swift|ts-node|tsx|go|kotlin|dart|nu)[\d.]*w?\Z"
)
"""Programs that run a file that they are given; most run their standard input where they are given none."""
_OBEYING = frozenset(
    [
        "ipython", "irb", "psql", "mysql", "mariadb", "sqlite3", "ed", "ex", "vi", "vim", "nvim", "emacs", "m4", "dc", "gnuplot",
        "octave", "crontab", "patch", "pytest", "py.test", "pdb", "ipdb", "ftp", "sftp", "telnet",
    ]
)  # fmt: skip
"""Further programs that do what their standard input says, with some options or without any."""


def _obeys_input(wanted: SimpleCommand) -> bool:
    """Whether a command of this pattern may run what a pipe gives it: an interpreter whose script the pattern does not
    name."""
    program, *rest = wanted.words
    program = os.path.basename(program)
    if program in _OBEYING:
        return True
    if INTERPRETERS.match(program) is None:
        return False
    script = rest[1:2] if rest[:1] == ["-m"] else rest[:1]
    return not script or script[0] == "*" or script[0].startswith(("-", "/dev/", "/proc/"))


def parse_command(command: str) -> Pipeline | None:
    """The parts of `command` if it is plainly a pipeline of simple commands, or one of them; else None."""
    texts = _split_at_pipes(command)
    if texts is None:
        return None
    parts = [_simple_command(text, is_last=at == len(texts)) for at, text in enumerate(texts, 1)]
    return None if None in parts else tuple(one for one in parts if one is not None)


def _split_at_pipes(command: str) -> list[str] | None:
    """The text between the pipes; None if one is quoted."""
    texts, quote = [""], ""
    for letter in command:
        if letter == "|":
            if quote:
                return None
            texts.append("")
            continue
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        texts[-1] += letter
    return texts


def _simple_command(text: str, *, is_last: bool) -> SimpleCommand | None:
    """One part; None where it is not plainly a program and its arguments."""
    text = text.strip(" ")
    joins_errors = not is_last and text.endswith(_JOINED)
    if joins_errors:
        text = text.removesuffix(_JOINED)
    if not text.isascii() or not text.isprintable() or _INTERPRETED.intersection(text):
        # Letters of other scripts may look like these; a person cannot tell them apart in a pattern.
        return None
    try:
        shlex.split(text, posix=True)
        variables: dict[str, str] = {}
        while found := _ASSIGNED.match(text):
            name, value = found[1], "".join(shlex.split(found[2], posix=True))
            # A tilde in a value names a folder of a user.
            if name not in VARIABLES or name in variables or "~" in value:
                return None
            variables[name] = value
            text = text[found.end() :]
        words = tuple(shlex.split(text, posix=True))
    except ValueError:
        return None
    if not words or not words[0] or "=" in words[0] or words[0].startswith(("-", "%", "~")):
        return None
    if os.path.basename(words[0]) in _ALWAYS_ASK:
        return None
    # A tilde at the beginning of a word, or after : and = in one, names a folder.
    if any(word.startswith("~") or ":~" in word or "=~" in word for word in words):
        return None
    return SimpleCommand(words, tuple(variables.items()), joins_errors)


def parse_pattern(pattern: str) -> Pipeline:
    """The parts of a pattern. Whether one joins its errors is not kept, as it allows no more.

    Raises:
        ValueError: a line that says why it can match nothing.
    """
    text = pattern.strip()
    if text == "*":
        raise ValueError("the pattern * would match every command; allow the tool instead")
    texts = _split_at_pipes(text) or [""]
    parts = tuple(_part_of_pattern(one, text, is_last=at == len(texts)) for at, one in enumerate(texts, 1))
    for part in parts[1:]:
        if part.words[-1] == "*" and _obeys_input(part):
            raise ValueError(
                f"{reveal(part.words[0])} may run its piped input as code; its pattern must name a script or have no *"
            )
    return parts


def _part_of_pattern(text: str, whole: str, *, is_last: bool) -> SimpleCommand:
    text = text.strip(" ")
    if not is_last:
        text = text.removesuffix(_JOINED).rstrip(" ")
    open_ended = text.endswith(" *")
    part = _simple_command(text[:-2] if open_ended else text, is_last=True)
    if part is None:
        raise ValueError(
            f"the pattern {reveal(whole)!r} matches nothing; use a simple command, or several joined by |. A final *"
            f" matches any further arguments. Allowed variables: {', '.join(VARIABLES)}"
        )
    if not open_ended:
        return part
    if starts_others(part.words):
        raise ValueError(
            f"{reveal(part.words[0])} starts other programs; its pattern must be a complete command without *"
        )
    return SimpleCommand((*part.words, "*"), part.variables)


def pattern_of(parts: Pipeline) -> str:
    """The text of a pattern that `parse_pattern` reads as these parts."""
    return " | ".join(_text_of_part(part) for part in parts)


def _text_of_part(part: SimpleCommand) -> str:
    words = part.words[:-1] if part.words[-1] == "*" else part.words
    variables = [f"{name}={shlex.quote(value)}" for name, value in part.variables]
    return " ".join([*variables, shlex.join(words), *(["*"] if words is not part.words else [])])


def matches(pattern: str, command: str) -> Pipeline | None:
    """What `command` runs if the pattern alone covers it; else None. A pattern that is none matches nothing."""
    found = covering([pattern], command)
    return found[0] if found is not None else None


def covering(patterns: Sequence[str], command: str) -> tuple[Pipeline, tuple[int, ...]] | None:
    """What `command` runs if these patterns cover it, and the positions of those that do; else None.

    One pattern covers all of it, or each part has a pattern of one part. `*` matches no option that names a file to write
    or a program to run, unless the pattern names that option, and no arguments of a program that starts others. A pattern
    of one part covers no interpreter behind a pipe, unless it names the script. Whether the values of variables lead
    inside the workspace is for `values_inside` to say.
    """
    parts = parse_command(command)
    if parts is None:
        return None
    single: list[tuple[int, SimpleCommand]] = []
    for number, text in enumerate(patterns):
        try:
            wanted = parse_pattern(text)
        except ValueError:
            continue
        if len(wanted) == len(parts) and all(map(_covers, wanted, parts)):
            return parts, (number,)
        if len(wanted) == 1:
            single.append((number, wanted[0]))
    used = []
    for at, part in enumerate(parts):
        fits = (number for number, one in single if _covers(one, part) and not (at and _obeys_input(one)))
        if (found := next(fits, None)) is None:
            return None
        used.append(found)
    return parts, tuple(dict.fromkeys(used))


def _covers(wanted: SimpleCommand, part: SimpleCommand) -> bool:
    """Whether a part of a pattern matches a part of a command."""
    words = part.words
    if wanted.variables and wanted.variables != part.variables:
        return False
    if wanted.words[-1] != "*":
        return words == wanted.words
    fixed = wanted.words[:-1]
    if words[: len(fixed)] != fixed or starts_others(words):
        return False
    program = os.path.basename(words[0])
    named = {naming_option(program, word) for word in fixed} | {""}
    return all(naming_option(program, word) in named for word in words[len(fixed) :])


def values_inside(parts: Pipeline, folder: str, workspace: str) -> bool:
    """Whether each value that names a path names one of the workspace, links followed, for a command that runs in
    `folder`."""
    root = os.path.realpath(workspace)
    for name, value in (pair for part in parts for pair in part.variables):
        for path in _paths_of(name, value):
            place = os.path.realpath(os.path.join(folder, path))
            if os.path.commonpath([root, place]) != root:
                return False
    return True


def _paths_of(name: str, value: str) -> list[str]:
    """The paths that the value of a variable names. What leads up from a folder of the system names that of the root."""
    if name == "PYTHONPATH":
        return value.split(":")  # an empty entry is the folder itself
    if name == "TZ":
        path = value.removeprefix(":")
        if ".." in path.split("/"):  # from the folder of the time zones
            return ["/"]
        return [path] if path != value or "/" in path or path.startswith(".") else []
    if name in ("LANG", "LC_ALL"):
        return [value] if "/" in value or value in (".", "..") else []
    return [value] if "/" in value else []


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
    import shutil  # late: it loads every compressor

    return shutil.which(program, path=os.pathsep.join(places)) if places else None


# --- Files that make other programs run code ------------------------------------------------------------------

GUARDED_PATHS = {
    ".git/**": "git runs hooks and programs configured there",
    ".claude/**": "Claude Code runs hooks and commands configured there",
    ".codex/**": "Codex runs programs configured there",
    ".opencode/**": "OpenCode runs plugins and commands in it",
    ".mcp.json": "agent programs start the servers listed in it",
    ".envrc": "direnv runs it",
    ".vscode/**": "VS Code runs tasks and programs configured there",
    ".github/workflows/**": "GitHub runs workflows in it",
    "AGENTS.md": "agents follow its instructions",
    "CLAUDE.md": "agents follow its instructions",
}
"""Files, in the workspace or any folder below it, whose change asks every time, and why."""

PATH_GRANT = "write:"
"""Begins the name of an `--allow` that is about paths: `write:.github/**`."""


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A file that a call would write, by the name that it gives or by the name that links lead to."""

    name: str
    """Relative to the workspace where it is inside."""
    guard: str
    """Why a write of it asks every time; empty where it does not."""


def written_paths(workspace: Path, arguments: Any) -> list[WrittenPath]:
    """The files that a call with this input would write, each by its own name and with links followed."""
    found: dict[str, None] = {}
    for name in edited_files(arguments):
        if "\0" in name:
            continue
        given = os.path.normpath(os.path.join(workspace, name))
        for path, root in ((given, str(workspace)), (os.path.realpath(given), os.path.realpath(workspace))):
            inside = os.path.relpath(path, root)
            found[path if inside.startswith("..") else inside] = None
    return [WrittenPath(name, _guard_of(name)) for name in found]


def is_path_granted(name: str, grants: Iterable[str]) -> bool:
    """Whether an `--allow` such as `write:.github/**` names this path."""
    globs = (one.removeprefix(PATH_GRANT) for one in grants if one.startswith(PATH_GRANT))
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _guard_of(name: str) -> str:
    parts = [part.casefold() for part in name.split("/") if part]  # some file systems ignore the case
    for pattern, reason in GUARDED_PATHS.items():
        folder = pattern.removesuffix("/**")
        wanted = folder.casefold().split("/")
        if folder == pattern:
            hit = parts[-1:] == wanted
        else:
            hit = any(parts[at : at + len(wanted)] == wanted for at in range(len(parts)))
        if hit:
            return f"a write to {name} always needs approval: {reason}"
    return ""


# --- The file that a call of `write` or `edit` would change -------------------------------------------------
#
# Its name, its content, and its content after the call. A person approves a change of a file in its present
# state. `digest_of` is the same only for the same file with the same content: a process that changes either,
# by writing or by swapping a link, makes the approval void for it. Paths are resolved as the file tools
# resolve them. Used by the host, by the worker that writes, and by the interfaces that show the question.

FILE_CHANGES = frozenset({"write", "edit"})
"""The tools whose input is a change of one file."""

SUBJECT_CHANGED = "[not run] The file changed after a person approved this call. Nothing was written."
"""What a worker answers that found another file than the approved one."""

PREMISES_CHANGED = (
    "[not run] The script, shell or folder changed after a person approved this call. Nothing was run."
)
"""What answers an approved command whose shell, folder or script is another one than in the question."""

REFUSED = "refused"
"""In the place of a digest: the tool will refuse the path. If it leads to a file later, that is not what was
approved."""

MOST_SHOWN_BYTES = 16 * 1024 * 1024
"""A larger file is not compared line by line."""


Protected = frozenset[tuple[int, int]]
"""Device and inode of the files of a database and of its leases."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a call would do to its file."""

    path: str
    """As the model gave it."""
    target: str
    """The file that it leads to, links followed; empty if there is none."""
    digest: str
    """Digest of the file in its present state; `REFUSED` if the tool would refuse the path anyway."""
    before: str | None
    """None: there is no such file."""
    after: str | None
    """None: the call would fail, and `problem` says why."""
    problem: str = ""


def resolve_target(workspace: Path, name: Any) -> Path | None:
    """The file that the tools reach by `name`, or None where they refuse it: outside the workspace, a loop of
    links."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    try:
        root = workspace.resolve(strict=True)
        # As the file tools do: dots are taken out of the name first, then every link is followed.
        target = Path(os.path.realpath(os.path.normpath(root / name)))
    except (OSError, ValueError, RuntimeError):
        return None
    return target if target.is_relative_to(root) and not target.is_symlink() else None


def state_digest(target: Path, descriptor: int | None) -> str:
    """Identifies a file and what it holds; `descriptor` None: there is no such file."""
    state = hashlib.sha256(os.fsencode(target) + b"\0")
    if descriptor is None:
        state.update(b"absent")
        return state.hexdigest()
    state.update(b"file\0")
    offset = 0
    while block := os.pread(descriptor, 1024 * 1024, offset):
        state.update(block)
        offset += len(block)
    return state.hexdigest()


def digest_of(
    workspace: Path, tool: str, arguments: Mapping[str, Any], protected: Protected = frozenset()
) -> str:
    """Identifies the file that the call would change, in its present state. Empty for other tools, `REFUSED`
    for a refused path.

    A file of `protected` is not opened: closing it would drop the locks that this process has on it.
    """
    if tool not in FILE_CHANGES:
        return ""
    target = resolve_target(workspace, arguments.get("file_path"))
    if target is None:
        return REFUSED
    try:
        descriptor = open_regular(target, protected)
    except FileNotFoundError:
        return state_digest(target, None)
    except OSError:
        return REFUSED
    try:
        return state_digest(target, descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else REFUSED
    finally:
        os.close(descriptor)


def file_change(
    workspace: Path, tool: str, arguments: Mapping[str, Any], protected: Protected = frozenset()
) -> FileChange:
    """What a call of `write` or `edit` would do to its file, as the file is now. Raises nothing for what the
    file is."""
    path = str(arguments.get("file_path") or "")
    # First the digest: if the file changes before its text is read, the answer does not count, and the
    # question comes again.
    digest = digest_of(workspace, tool, arguments, protected)
    target = resolve_target(workspace, path)
    if target is None:
        problem = "the path is outside the workspace, so the tool will refuse it"
        return FileChange(path, "", REFUSED, None, None, problem)
    before, problem = _text_of(target, protected)
    after: str | None = None
    old, new = arguments.get("old_string"), arguments.get("new_string")
    if tool == "write":
        content = arguments.get("content")
        after = content if isinstance(content, str) else None
    elif before is None or not isinstance(old, str) or not isinstance(new, str) or not old:
        problem = problem or "the file does not exist, so the edit will fail"
    elif (count := before.count(old)) == 0:
        problem = "the file does not contain the old text, so the edit will fail"
    elif count > 1 and not arguments.get("replace_all"):
        problem = f"the file contains the old text {count} times, so the edit will fail"
    else:
        after = before.replace(old, new)
    return FileChange(path, str(target), digest, before, after, problem)


def holds_already(
    workspace: Path, tool: str, arguments: Mapping[str, Any], protected: Protected = frozenset()
) -> bool:
    """Whether the file of a `write` holds the text that the call would write: it ran, and its host died
    before it said so."""
    if tool != "write":
        return False
    change = file_change(workspace, tool, arguments, protected)
    return change.before is not None and change.before == change.after


def open_regular(target: Path, protected: Protected) -> int:
    """A descriptor to read the file that bears this name now.

    Raises:
        PermissionError: it is one of `protected`.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    if sys.platform != "linux":
        _refuse(os.stat(target, follow_symlinks=False), protected)
        return os.open(target, flags)
    # A reference to the file first: closing that drops no lock, and what is opened through it is the same
    # file.
    reference = os.open(target, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse(os.fstat(reference), protected)
        return os.open(f"/proc/self/fd/{reference}", flags & ~os.O_NOFOLLOW)
    finally:
        os.close(reference)


def _refuse(status: os.stat_result, protected: Protected) -> None:
    if (status.st_dev, status.st_ino) in protected:
        raise PermissionError(errno.EACCES, "it is part of the database of this run")
    if not stat.S_ISREG(status.st_mode):
        raise PermissionError(errno.EACCES, "it is not a regular file, so the tool will refuse it")


def _text_of(target: Path, protected: Protected) -> tuple[str | None, str]:
    """The file's text, or None and why it cannot be shown (nothing where there is no file)."""
    try:
        descriptor = open_regular(target, protected)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"cannot read the file: {error.strerror}"
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_size > MOST_SHOWN_BYTES:
            return (
                None,
                f"the file is too large to compare ({status.st_size:,} bytes); a write replaces all of it",
            )
        data = file.read(MOST_SHOWN_BYTES + 1)
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return None, f"the file is not UTF-8 text ({status.st_size:,} bytes); a write replaces all of it"
