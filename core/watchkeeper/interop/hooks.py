"""Hooks of Claude Code and Codex: small shell lines in the user's settings that tell Watchkeeper what a session does.

`install` adds them to a settings file, `uninstall` restores the file byte for byte where nothing else changed it, and
otherwise takes out what was added and nothing else. A hook reads scripts that `install` writes into a folder
beside the database:

- `spool.sh` writes the event into a file of its own, closes both outputs and exits 0;
- `compact.sh` does the same and prints the user's instructions for a compaction, if there are any;
- `guard.sh` (only where `[guard]` sets a cap) denies an agent to a session that reached one;
- `answer.sh` (only with `answer`) waits beside the program's own dialog for an answer.

A hook runs no part of Watchkeeper and stores no environment. Without the folder it does nothing. `interop.hook_spool`
turns what they wrote into rows.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import mmap
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from watchkeeper.records.errors import BadInput, NotFound, reason_of
from watchkeeper.store.driver import make_private
from watchkeeper.store.external import hooks_folder

EVENTS = (
    "SessionStart", "SessionEnd", "UserPromptSubmit", "Stop", "StopFailure", "Notification", "PreCompact", "PostCompact",
    "SubagentStop",
)  # fmt: skip
"""What is spooled. No event per tool call: the log has those."""
ASKING = "PermissionRequest"
GUARDING = "PreToolUse"
"""Registered where `[guard]` sets a cap, and fired only before a session starts an agent."""
SPAWNS = "Task|Agent|spawn_agent"
"""The tools with which Claude Code and Codex start an agent."""
OLD_EVENTS = frozenset(
    {"SessionStart", "SessionEnd", "UserPromptSubmit", "Stop", "Notification", "PreCompact", "SubagentStop"}
)
"""Events of Claude Code since 1.0.85: what is registered where no program can be asked."""
KNOWS_ALL = (2, 1, 185)
"""From this version on, Claude Code knows all of `EVENTS` and `ASKING`."""

CODEX_EVENTS = (
    "SessionStart", "SessionEnd", "UserPromptSubmit", "Stop", "Interrupt", "PermissionRequest", "PreCompact", "PostCompact",
    "SubagentStop",
)  # fmt: skip
"""What Codex 0.169 fires, with the payloads of Claude Code. It ignores other names. Its dialog comes only once the hook of
`PermissionRequest` has ended: such a hook may say that a question waits, and must not wait for an answer itself."""
FIRST_CODEX = (0, 169)

SPOOL_TIMEOUT_SECONDS = 3
"""Codex allows a hook at the end of a session no more."""
ANSWER_TIMEOUT_SECONDS = 86_400
"""What an agent asks in the evening is answered in the morning. Claude Code ends a hook that waits longer."""
MOST_PENDING = 1_000
"""Files that wait to be read. A hook writes no further ones: without a reader the spool stays small."""
MOST_BYTES = 64 << 10
"""The size of one event. What is beyond is read and dropped."""
MOST_QUESTION_BYTES = 1 << 20
LONGEST_SETTINGS = 8 << 20

_SPOOL = """\
# Written by `wk hooks install`: saves one event of the program to a file. It is read in a subshell.
umask 077
cd {folder}/spool || exit
set -- *.json
[ $# -lt {pending} ] || exit
{head} -c {bytes} >"$PPID.$$.json" || {rm} -f "$PPID.$$.json"
exec {cat} >/dev/null
"""

_COMPACT = """\
# Written by `wk hooks install`: as spool.sh, and prints the user's instructions for a compaction.
(. {folder}/spool.sh) >/dev/null 2>&1
case $CLAUDE_CODE_SESSION_ID in '' | *[!0-9A-Za-z-]*) exit ;; esac
[ -r {folder}/instructions/"$CLAUDE_CODE_SESSION_ID" ] || exit
{cat} {folder}/instructions/"$CLAUDE_CODE_SESSION_ID"
"""

_GUARD = """\
# Written by `wk hooks install`: denies an agent to a session that reached a cap of the user's `[guard]`, and keeps the event.
cd {folder}/guard || exit
set -- *
[ -e "$1" ] && read -r listener <../listening && kill -0 "$listener" || exit
payload=$({head} -c {bytes}; exec {cat} >/dev/null)
session=$(printf %s "$payload" | {grep} -o '"session_id": *"[0-9A-Za-z_-]*"' | {head} -n 1)
session=${{session%\\"}} session=${{session##*\\"}}
[ -n "$session" ] && [ -r "$session" ] || exit
printf %s "$payload" | (. {folder}/spool.sh) >/dev/null
{cat} "$session"
"""

_ANSWER = """\
# Written by `wk hooks install --answer`: waits beside the program's own dialog, whose answer counts if it comes first.
umask 077
cd {folder} || exit
read -r listener <listening && kill -0 "$listener" || exit
nonce=$({od} -An -N16 -tx1 /dev/urandom | {tr} -d ' \\n')
[ ${{#nonce}} -eq 32 ] || exit
question=asks/$PPID.$nonce.json answer=answers/$nonce.json state={sessions}/$PPID.json
trap '{rm} -f "$question" "$answer" "asks/.$nonce"; exit' TERM INT HUP
{head} -c {bytes} >"asks/.$nonce" && {mv} "asks/.$nonce" "$question" || {{ {rm} -f "asks/.$nonce"; exit; }}
{cat} >/dev/null
grace=15 looks=0
while {sleep} 0.2; do
    if [ $looks -lt 600 ]; then looks=$((looks + 1)); else {sleep} 1; fi
    if [ -s "$answer" ]; then {cat} "$answer"; break; fi
    [ -e "$question" ] && kill -0 "$PPID" || break
    if [ $grace -gt 0 ]; then grace=$((grace - 1)); continue; fi
    line=
    read -r line <"$state"
    case $line in '' | *'"status":"waiting"'*) ;; *) break ;; esac
done
{rm} -f "$question" "$answer"
"""


class Entry(NamedTuple):
    """What is registered for one event."""

    command: str
    timeout: int
    matcher: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """One file with hooks: the user's, or that of one folder."""

    path: Path
    home: Path
    """The program's own folder, usually `~/.claude` or `~/.codex`."""


def settings_of(environ: Mapping[str, str], project: Path | None, program: str = "claude") -> Settings:
    """The user's settings of `claude` or `codex`, or those for `project` (`.claude/settings.local.json`,
    `.codex/hooks.json`).

    Raises:
        NotFound: there is no such folder, or the program has never run here.
    """
    folder, label, variable, names = {
        "claude": (".claude", "Claude Code", "CLAUDE_CONFIG_DIR", ("settings.json", "settings.local.json")),
        "codex": (".codex", "Codex", "CODEX_HOME", ("hooks.json", "hooks.json")),
    }[program]
    home = Path(environ.get(variable) or Path.home() / folder).expanduser().absolute()
    if project is not None:
        place = project.expanduser().absolute()
        if not place.is_dir():
            raise NotFound(f"no such folder: {place}")
        return Settings(place / folder / names[1], home)
    if not home.is_dir():
        raise NotFound(f"{label} has not run here: {home} does not exist")
    return Settings(home / names[0], home)


# --- Settings as text: entries are put in and taken out, and every other byte stays ------------------------------------

_SPACE = re.compile(r"[ \t\r\n]*")
_LOOSE = re.compile(r"//|/\*|,\s*[}\]]")
_decode = json.JSONDecoder().raw_decode


class _Part(NamedTuple):
    """A member of an object, or an item of an array (then `key` is empty): where it begins and ends in the text."""

    key: str
    begin: int
    value: int
    end: int


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _parts(text: str, start: int) -> list[_Part]:
    """The parts of the object or array that begins at `start`. The text is valid JSON."""
    parts: list[_Part] = []
    at = _space(text, start + 1)
    while text[at] not in "}]":
        begin, key = at, ""
        if text[start] == "{":
            key, at = _decode(text, at)
            at = _space(text, _space(text, at) + 1)
        value = at
        _, at = _decode(text, at)
        parts.append(_Part(key, begin, value, at))
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    return parts


def _member(text: str, start: int, key: str) -> _Part | None:
    return next((part for part in _parts(text, start) if part.key == key), None)


def _cut(text: str, parts: list[_Part], place: int) -> str:
    """The text without one part, without a comma that belonged to it and the space that `_put` added."""
    if place:
        return text[: parts[place - 1].end] + text[parts[place].end :]
    begin = len(text[: parts[0].begin].rstrip(" \t\r\n"))
    end = _space(text, parts[0].end)
    return text[:begin] + text[end + (text[end] == ",") :]


def _put(text: str, start: int, piece: str, depth: int) -> str:
    """The text with a new first part in the object or array that begins at `start`."""
    newline = "\r\n" if "\r\n" in text else "\n"
    after = _space(text, start + 1)
    inside = newline + "  " * (depth + 1) + piece.replace("\n", newline)
    if text[after] in "}]":
        return text[: start + 1] + inside + newline + "  " * depth + text[after:]
    # The space before what was there stays before it: `_cut` restores every byte.
    return text[: start + 1] + inside + "," + text[start + 1 :]


def _refuse(what: str) -> Any:
    raise ValueError(what)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key in an object")
    return found


def parse_settings(text: str) -> dict[str, Any]:
    """The settings in a text; blank text holds none.

    Raises:
        ValueError: it is not what Claude Code takes as settings, or what this module could change safely.
    """
    if not text.strip(" \t\r\n"):
        return {}
    try:
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as fault:
        why = "; comments and trailing commas are not allowed" if _LOOSE.search(text) else ""
        raise ValueError(
            f"line {fault.lineno} is not strict JSON ({fault.msg[:1].lower()}{fault.msg[1:]}){why}"
        ) from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    hooks = found.get("hooks", {})
    if not isinstance(hooks, dict):
        raise ValueError('"hooks" is not an object')
    for event, groups in hooks.items():
        if not isinstance(groups, list):
            raise ValueError(f'"hooks" must have a list for {event[:60]}')
    return found


def with_entries(text: str, entries: Mapping[str, Entry]) -> str:
    """The settings with these hooks besides those that are there.

    Raises:
        ValueError: as `parse_settings`.
    """
    hooks = parse_settings(text).get("hooks")
    if not text.strip(" \t\r\n"):
        text = "{}\n"
    top = _space(text, 0)
    if hooks is None:
        text = _put(text, top, '"hooks": {}', 0)
    for event, entry in reversed(list(entries.items())):
        found = _member(text, top, "hooks")
        assert found is not None
        if _member(text, found.value, event) is None:
            text = _put(text, found.value, f"{json.dumps(event)}: []", 1)
        array = _member(text, found.value, event)
        assert array is not None
        one = {"type": "command", "command": entry.command, "timeout": entry.timeout}
        text = _put(text, array.value, json.dumps({"matcher": entry.matcher, "hooks": [one]}), 2)
    return text


def without_entries(text: str, is_ours: Callable[[str], bool], created: frozenset[str] | None = None) -> str:
    """The settings without the hooks whose command `is_ours`. `created`: events, and `hooks`, that are taken out as well
    once they are empty; by default, those from which a hook was taken.

    Raises:
        ValueError: as `parse_settings`.
    """
    hooks = parse_settings(text).get("hooks")
    top = _space(text, 0)
    emptied: set[str] = set()
    for event, groups in (hooks or {}).items():
        for place in reversed(range(len(groups))):
            inner = groups[place].get("hooks") if isinstance(groups[place], dict) else None
            ours = (
                [n for n, one in enumerate(inner) if _is_command(one, is_ours)]
                if isinstance(inner, list)
                else []
            )
            if ours:
                emptied |= {event, "hooks"}
            for number in reversed(ours):
                array = _array(text, top, event)
                group = _parts(text, array)[place]
                list_of_hooks = _member(text, group.value, "hooks")
                assert list_of_hooks is not None
                text = _cut(text, _parts(text, list_of_hooks.value), number)
            if ours and len(ours) == len(inner or ()):
                text = _cut(text, _parts(text, _array(text, top, event)), place)
        if event in (emptied if created is None else created) and not _parts(text, _array(text, top, event)):
            found = _member(text, top, "hooks")
            assert found is not None
            parts = _parts(text, found.value)
            text = _cut(text, parts, [part.key for part in parts].index(event))
    if hooks is not None and "hooks" in (emptied if created is None else created):
        parts = _parts(text, top)
        place = [part.key for part in parts].index("hooks")
        if not _parts(text, parts[place].value):
            text = _cut(text, parts, place)
    return text


def _array(text: str, top: int, event: str) -> int:
    """Where the list of an event's hooks begins."""
    found = _member(text, top, "hooks")
    array = _member(text, found.value, event) if found else None
    assert array is not None
    return array.value


def _is_command(hook: Any, is_ours: Callable[[str], bool]) -> bool:
    return isinstance(hook, dict) and isinstance(hook.get("command"), str) and is_ours(hook["command"])


# --- What is registered ------------------------------------------------------------------------------------------------


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def command_of(folder: Path, script: str) -> str:
    """The shell line of a hook: it exits 0 whatever becomes of the script, which may also be gone."""
    outputs = ">/dev/null 2>&1" if script == "spool.sh" else "2>/dev/null"
    return f"(. {_quoted(folder / script)}) {outputs}; exit 0"


def entries_of(
    folder: Path, events: tuple[str, ...], *, answer: bool, program: str = "claude"
) -> dict[str, Entry]:
    """What is registered for these events. Only Claude Code takes instructions for a compaction from a hook."""
    claude = program == "claude"
    compacts = "compact.sh" if claude else "spool.sh"
    found = {
        event: Entry(
            command_of(folder, compacts if event == "PreCompact" else "spool.sh"), SPOOL_TIMEOUT_SECONDS
        )
        for event in (EVENTS if claude else CODEX_EVENTS)
        if event in events
    }
    if GUARDING in events:
        found[GUARDING] = Entry(command_of(folder, "guard.sh"), SPOOL_TIMEOUT_SECONDS, SPAWNS)
    if answer and claude and ASKING in events:
        found[ASKING] = Entry(command_of(folder, "answer.sh"), ANSWER_TIMEOUT_SECONDS)
    return found


def scripts(folder: Path, home: Path) -> dict[str, str]:
    """The scripts that the hooks read, with absolute paths of what they call."""
    tools = {
        name: shutil.which(name, path="/usr/bin:/bin") or name
        for name in ("cat", "grep", "head", "mv", "od", "rm", "sleep", "tr")
    }
    place = _quoted(folder)
    return {
        "spool.sh": _SPOOL.format(folder=place, pending=MOST_PENDING, bytes=MOST_BYTES, **tools),
        "compact.sh": _COMPACT.format(folder=place, **tools),
        "guard.sh": _GUARD.format(folder=place, bytes=MOST_BYTES, **tools),
        "answer.sh": _ANSWER.format(
            folder=place, sessions=_quoted(home / "sessions"), bytes=MOST_QUESTION_BYTES, **tools
        ),
    }


class Program(NamedTuple):
    """The installed program."""

    version: str
    """Empty: none was found."""
    events: tuple[str, ...]
    """Those of `EVENTS` and `ASKING` that it knows."""
    name: str = "claude"


def find_version(environ: Mapping[str, str], name: str, first: tuple[int, int], program: Path | None) -> str:
    """The version of a program that can tell of its sessions.

    Raises:
        NotFound: there is none, or it is older than the `first` that can.
    """
    found = str(program) if program is not None else shutil.which(name, path=environ.get("PATH"))
    try:
        said = found and subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        said = None
    numbers = re.search(r"(\d+)\.(\d+)\.\d+", said.stdout) if said else None
    if numbers is None or (int(numbers[1]), int(numbers[2])) < first:
        label = {"codex": "Codex", "opencode": "OpenCode"}[name]
        raise NotFound(
            f"this needs {label} {first[0]}.{first[1]} or later on PATH; without it, sessions are still followed through their logs"
        )
    return numbers[0]


def find_codex(environ: Mapping[str, str], program: Path | None = None) -> Program:
    """The installed `codex`.

    Raises:
        NotFound: as `find_version`.
    """
    return Program(find_version(environ, "codex", FIRST_CODEX, program), CODEX_EVENTS, "codex")


def find_program(environ: Mapping[str, str], program: Path | None = None) -> Program:
    """The version of `claude` and the events that it knows. Its code is searched for their names: an event that it does
    not know would make it ask the user about the settings at its start."""
    wanted = (*EVENTS, ASKING)
    found = str(program) if program is not None else shutil.which("claude", path=environ.get("PATH"))
    if found is None:
        return Program("", tuple(event for event in wanted if event in OLD_EVENTS))
    try:
        said = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
        version = (
            said.stdout.split()[0][:40] if said.returncode == 0 and said.stdout.split() else "version unknown"
        )
        code = Path(found).resolve()
        if code.stat().st_size < 1 << 20 and (code.parent / "cli.js").is_file():
            code = code.parent / "cli.js"  # the npm package before it had a binary
        with code.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            known = tuple(event for event in wanted if view.find(f'"{event}"'.encode()) >= 0)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return Program("version unknown", tuple(event for event in wanted if event in OLD_EVENTS))
    if "SessionStart" in known:
        return Program(version, known)
    # A wrapper, such as a version manager's, names none of them: its version tells.
    said_so = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})\b", version)
    knows_all = said_so is not None and tuple(map(int, said_so.groups())) >= KNOWS_ALL
    return Program(version, tuple(e for e in wanted if knows_all or e in OLD_EVENTS))


# --- Files -------------------------------------------------------------------------------------------------------------


def digest(data: bytes | None) -> str | None:
    """Names the bytes of a file; None where there is none."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def read_settings(path: Path) -> bytes | None:
    """The bytes of a settings file; None where there is none.

    Raises:
        BadInput: it cannot be read, or is not a regular file of a sensible size.
    """
    try:
        if path.exists() and (not path.is_file() or path.stat().st_size > LONGEST_SETTINGS):
            raise BadInput(f"{path} is not a settings file: it is too large, or not a regular file")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise BadInput(f"{path} is a broken link") from None
        return None
    except OSError as fault:
        raise BadInput(f"cannot read {path}: {reason_of(fault)}") from None


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, through a link if it is one, with its mode.

    Raises:
        BadInput: it cannot be written.
    """
    try:
        target = path.resolve()
        make_private(target.parent)
        mode = target.stat().st_mode & 0o7777 if target.exists() else mode
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "it is read-only")
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as fault:
        raise BadInput(f"cannot write {path}: {reason_of(fault)}") from None


@dataclass(slots=True)
class Installed:
    """One settings file into which hooks were installed."""

    path: str
    original: str | None
    """Digest of its bytes before; None where there was no file. The bytes are in the folder `backups`."""
    installed: str
    """Digest of what was written."""
    created: list[str] = field(default_factory=list)
    """Events, and `hooks`, for which the file had no entry."""
    events: list[str] = field(default_factory=list)
    version: str = ""
    home: str = ""
    program: str = "claude"

    @property
    def answers(self) -> bool:
        return self.program != "codex" and ASKING in self.events


def load_installed(folder: Path) -> list[Installed]:
    """What was installed, by the record in the folder; damaged records count as none."""
    try:
        found = json.loads((folder / "installed.json").read_bytes())
        return [Installed(**each) for each in found]
    except (OSError, ValueError, TypeError):
        return []


def _save_installed(folder: Path, records: list[Installed]) -> None:
    rows = [{name: getattr(each, name) for name in Installed.__slots__} for each in records]
    _write(folder / "installed.json", json.dumps(rows, indent=1).encode())


@dataclass(frozen=True, slots=True)
class Change:
    """What an installation or its end would do to one settings file."""

    path: Path
    before: bytes | None
    after: bytes | None
    """None: the file is deleted."""
    record: Installed | None
    """What is to be recorded; None: nothing is installed any more."""
    note: str = ""

    @property
    def is_needed(self) -> bool:
        return self.before != self.after

    def diff(self) -> str:
        """The change as a unified diff."""
        old, new = (
            (data or b"").decode("utf-8", "replace").splitlines(keepends=True)
            for data in (self.before, self.after)
        )
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path), n=2)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _text(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not UTF-8 text; nothing was changed") from None
    if text.startswith("\ufeff"):
        raise BadInput(f"{path} has a byte order mark; save it without one. Nothing was changed")
    return text


def _original(folder: Path, record: Installed) -> bytes | None:
    """The bytes of before; None if there was no file.

    Raises:
        NotFound: the backup is not there, or not what it was.
    """
    if record.original is None:
        return None
    try:
        data = (folder / "backups" / record.original).read_bytes()
    except OSError:
        data = b""
    if digest(data) != record.original:
        raise NotFound("the backup is missing")
    return data


def _base(folder: Path, path: Path, data: bytes | None, record: Installed | None) -> tuple[bytes | None, str]:
    """The file without our hooks, and a note."""
    ours = {command_of(folder, name) for name in ("spool.sh", "compact.sh", "guard.sh", "answer.sh")}
    if record is not None and digest(data) == record.installed:
        try:
            return _original(folder, record), ""
        except NotFound:
            pass
    if data is None:
        return None, ""
    text = _text(path, data)
    created = frozenset(record.created) if record else None
    try:
        bare = without_entries(text, ours.__contains__, created)
        left = parse_settings(bare)
    except ValueError as fault:
        raise BadInput(f"cannot change {path} safely: {fault}; nothing was changed") from None
    if record is not None:
        # Claude Code itself rewrites its settings, in its own layout, with nothing changed.
        try:
            original = _original(folder, record)
            if left == parse_settings((original or b"").decode("utf-8")):
                return original, ""
        except (NotFound, ValueError):
            pass
    return (
        bare.encode(),
        "the file has changed since the installation; only Watchkeeper's entries are removed",
    )


def plan_install(database: Path, settings: Settings, program: Program, *, answer: bool) -> Change:
    """What `install` would write.

    Raises:
        BadInput: the file cannot be changed safely; the line says why.
    """
    folder, path = hooks_folder(database), settings.path
    data = read_settings(path)
    before = next((each for each in load_installed(folder) if each.path == str(path)), None)
    bare, _ = _base(folder, path, data, before)
    text = _text(path, bare or b"")
    entries = entries_of(folder, program.events, answer=answer, program=program.name)
    try:
        known = parse_settings(text)
        after = with_entries(text, entries)
        with_ours = parse_settings(after)
    except ValueError as fault:
        raise BadInput(f"cannot change {path} safely: {fault}; nothing was changed") from None
    assert all(
        with_ours["hooks"][event][0]["hooks"][0]["command"] == one.command for event, one in entries.items()
    )
    hooks = known.get("hooks", {})
    created = [event for event in entries if event not in hooks] + ([] if "hooks" in known else ["hooks"])
    record = Installed(
        str(path),
        digest(bare),
        digest(after.encode()) or "",
        created,
        list(entries),
        program.version,
        str(settings.home),
        program.name,
    )
    note = (
        'these settings contain "disableAllHooks"; no hook runs until it is removed'
        if known.get("disableAllHooks")
        else ""
    )
    return Change(path, data, after.encode(), record, note)


def install(database: Path, settings: Settings, change: Change) -> None:
    """Write the scripts, the backup and the settings, in this order.

    Raises:
        BadInput: something cannot be written, or the settings changed meanwhile.
    """
    folder, record = hooks_folder(database), change.record
    assert record is not None
    assert change.after is not None
    try:
        for name in ("", "spool", "asks", "answers", "instructions", "guard", "backups"):
            make_private(folder / name)
            (folder / name).chmod(0o700)
    except OSError as fault:
        raise BadInput(f"cannot write to {folder}: {reason_of(fault)}") from None
    known = [each.home for each in (record, *load_installed(folder)) if each.program == "claude"]
    for name, script in scripts(folder, Path(known[0]) if known else Path.home() / ".claude").items():
        _write(folder / name, script.encode())
    others = [each for each in load_installed(folder) if each.path != record.path]
    previous = next((each for each in load_installed(folder) if each.path == record.path), None)
    if record.original is not None and not (folder / "backups" / record.original).exists():
        bare, _ = _base(folder, change.path, change.before, previous)
        _write(folder / "backups" / record.original, bare or b"")
    if read_settings(change.path) != change.before:
        raise BadInput(f"another program changed {change.path}; nothing was written. Try again")
    _save_installed(folder, [*others, record])
    if change.is_needed:
        _write(change.path, change.after)


def plan_uninstall(database: Path, path: Path) -> Change:
    """What `uninstall` would write.

    Raises:
        NotFound: nothing is installed there.
        BadInput: the file cannot be changed safely; the line says why.
    """
    folder = hooks_folder(database)
    record = next((each for each in load_installed(folder) if each.path == str(path)), None)
    data = read_settings(path)
    bare, note = _base(folder, path, data, record)
    if record is None and bare == data:
        raise NotFound(f"no Watchkeeper hooks in {path}")
    return Change(path, data, bare, None, note)


def uninstall(database: Path, change: Change) -> None:
    """Restore the settings; after the last of them, remove the scripts and what they wrote.

    Raises:
        BadInput: it cannot be written, or the settings changed meanwhile.
    """
    folder = hooks_folder(database)
    if read_settings(change.path) != change.before:
        raise BadInput(f"another program changed {change.path}; nothing was written. Try again")
    if change.after is None:
        change.path.unlink(missing_ok=True)
    elif change.is_needed:
        _write(change.path, change.after)
    others = [each for each in load_installed(folder) if each.path != str(change.path)]
    if others:
        _save_installed(folder, others)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def is_registered(folder: Path, record: Installed) -> bool:
    """Whether a settings file still holds every hook that was installed into it."""
    if record.program == "opencode":
        try:
            return digest(read_settings(Path(record.path))) == record.installed
        except BadInput:
            return False
    try:
        found = parse_settings(_text(Path(record.path), read_settings(Path(record.path)) or b"")).get(
            "hooks", {}
        )
    except (BadInput, ValueError):
        return False
    wanted = entries_of(folder, tuple(record.events), answer=True, program=record.program)
    held = {
        event: {
            one.get("command")
            for group in groups
            if isinstance(group, dict) and isinstance(inner := group.get("hooks"), list)
            for one in inner
            if isinstance(one, dict) and isinstance(one.get("command"), str)
        }
        for event, groups in found.items()
    }
    return all(entry.command in held.get(event, ()) for event, entry in wanted.items())


# --- The plugin of OpenCode -----------------------------------------------------------------------------
#
# OpenCode runs no shell line at an event: it loads files of JavaScript. Ours (`opencode_plugin.js`) writes events into
# the same spool, and with `answer` it hands on what the dashboard answers, beside OpenCode's own dialog. It throws
# nothing, waits for nothing, and does nothing without Watchkeeper's folder.

FIRST_OPENCODE = (1, 18)
OPENCODE_EVENTS = ("SessionStart", "UserPromptSubmit", "Stop", "StopFailure", "Interrupt", "PermissionRequest", "PreCompact",
          "PostCompact", "SessionEnd")  # fmt: skip
"""What the plugin tells, in the words of Claude Code's hooks."""

_PLUGIN_MARK = "// Written by `wk hooks install opencode`"


def opencode_settings(environ: Mapping[str, str], project: Path | None) -> Settings:
    """Where the plugin is installed: for the user, or for `project`.

    Raises:
        NotFound: there is no such folder.
    """
    home = (
        Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").expanduser().absolute() / "opencode"
    )
    if project is None:
        return Settings(home / "plugins" / "watchkeeper.js", home)
    place = project.expanduser().absolute()
    if not place.is_dir():
        raise NotFound(f"no such folder: {place}")
    return Settings(place / ".opencode" / "plugins" / "watchkeeper.js", home)


def plan_opencode_install(database: Path, settings: Settings, program: Program, *, answer: bool) -> Change:
    """What `install` would write.

    Raises:
        BadInput: another file has the plugin's name.
    """
    folder, path = hooks_folder(database), settings.path
    before = read_settings(path)
    _refuse_other_plugin(path, before)
    plugin = Path(__file__).with_name("opencode_plugin.js").read_text(encoding="utf-8")
    text = plugin % {
        "folder": json.dumps(str(folder)),
        "answer": json.dumps(answer),
        "pending": MOST_PENDING,
    }
    after = text.encode()
    events = [event for event in OPENCODE_EVENTS if event != ASKING or answer]
    record = Installed(
        str(path), None, digest(after) or "", [], events, program.version, str(settings.home), program.name
    )
    return Change(path, before, after, record)


def plan_opencode_uninstall(database: Path, path: Path) -> Change:
    """What `uninstall` would do: it deletes the plugin.

    Raises:
        NotFound: it is not installed there.
        BadInput: another file has the plugin's name.
    """
    before = read_settings(path)
    _refuse_other_plugin(path, before)
    if before is None and all(each.path != str(path) for each in load_installed(hooks_folder(database))):
        raise NotFound(f"no Watchkeeper plugin at {path}")
    return Change(path, before, None, None)


def _refuse_other_plugin(path: Path, data: bytes | None) -> None:
    if data is not None and not data.startswith(_PLUGIN_MARK.encode()):
        raise BadInput(f"{path} is not a Watchkeeper plugin; move it first. Nothing was changed")
