"""Adds the MCP server to the configuration of Claude Code, Codex or OpenCode, or takes it out, and changes nothing else of
the file.

An edit inserts, replaces or removes one entry in the text; comments, order and spaces stay. A file that cannot be read with
certainty is refused. The result is read again before it is written: it must be the old configuration with that one
entry, or without it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from watchkeeper.records.errors import BadInput, reason_of
from watchkeeper.records.text import parser_mistake
from watchkeeper.store.driver import make_private

PROGRAMS = ("claude", "codex", "opencode")
SERVER = "watchkeeper"
LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a program reads its MCP servers, and what it is to read there."""

    program: str
    path: Path
    keys: tuple[str, ...]
    """Where in the file the entry is."""
    value: dict[str, Any]

    def shown(self) -> str:
        """The entry alone, as a file that holds nothing else would have it."""
        return self.edited("")

    def edited(self, text: str) -> str:
        """The file's text with the entry; the same text if it has it already.

        Raises:
            BadInput: the text is damaged, or holds servers in a form that cannot be edited.
        """
        if self.program == "codex":
            return _toml(text, self.keys, self.value)
        comments = self.program == "opencode"
        return _JsonText(text if text.strip() else "{}\n", comments).with_member(self.keys, self.value)

    def removed(self, text: str) -> str:
        """The file's text without the entry; the same text if it has none.

        Raises:
            BadInput: the text is damaged, or holds servers in a form that cannot be edited.
        """
        if self.program == "codex":
            return _toml_without(text, self.keys)
        return _JsonText(text, self.program == "opencode").without_member(self.keys) if text.strip() else text


def entry(program: str, command: Sequence[str], environ: Mapping[str, str], home: Path) -> Entry:
    """The entry of a program, which starts the server with `command`."""
    first, *rest = command
    if program == "claude":
        folder = environ.get("CLAUDE_CONFIG_DIR")
        path = Path(folder) / ".claude.json" if folder else home / ".claude.json"
        return Entry(program, path, ("mcpServers", SERVER), {"type": "stdio", "command": first, "args": rest})
    if program == "codex":
        path = Path(environ.get("CODEX_HOME") or home / ".codex") / "config.toml"
        # Codex clears the environment of its servers. By this variable the server knows an agent of a run.
        value = {"command": first, "args": rest, "env_vars": ["WATCHKEEPER_AGENT"]}
        return Entry(program, path, ("mcp_servers", SERVER), value)
    chosen = environ.get("OPENCODE_CONFIG")
    folder_path = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    names = [folder_path / name for name in ("opencode.jsonc", "opencode.json", "config.json")]
    path = Path(chosen) if chosen else next((one for one in names if one.exists()), names[1])
    return Entry(
        program, path, ("mcp", SERVER), {"type": "local", "command": [first, *rest], "enabled": True}
    )


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did."""

    path: Path
    changed: bool
    backup: Path | None


def write(added: Entry) -> Written:
    """Add the entry to the program's file, atomically. The file that was there stays beside it as a backup.

    Raises:
        BadInput: the file cannot be read or written, is damaged, or changed meanwhile.
    """
    return _change(added, added.edited)


def remove(entry: Entry) -> Written:
    """Take the entry out of the program's file, atomically. The file that was there stays beside it as a backup.

    Raises:
        BadInput: the file cannot be read or written, is damaged, or changed meanwhile.
    """
    return _change(entry, entry.removed)


def _change(entry: Entry, edit: Callable[[str], str]) -> Written:
    path = Path(os.path.realpath(entry.path.expanduser()))  # a link into a folder of dotfiles stays one
    try:
        before = path.read_bytes() if path.exists() else None
        if before is not None and (len(before) > LARGEST_BYTES or not stat.S_ISREG(path.stat().st_mode)):
            raise BadInput(f"{path} is not a configuration file")
        try:
            text = (before or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            edited = edit(text)
        except BadInput as error:
            raise BadInput(f"{path}: {error}; nothing was changed") from None
        if edited == text and (before is not None or not text):
            return Written(path, False, None)
        make_private(path.parent)
        backup = _back_up(path) if before is not None else None
        _replace(path, edited.encode(), before)
    except OSError as error:
        raise BadInput(f"cannot change {path}: {reason_of(error)}") from None
    return Written(path, True, backup)


def _back_up(path: Path) -> Path:
    number = 1
    while (
        copy := path.with_name(f"{path.name}.before-watchkeeper{'' if number == 1 else f'-{number}'}")
    ).exists():
        number += 1
    shutil.copy2(path, copy)
    return copy


def _replace(path: Path, data: bytes, before: bytes | None) -> None:
    """Put the new file in the place of the one that was read."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            os.chmod(name, stat.S_IMODE(path.stat().st_mode))
            if path.read_bytes() != before:
                raise BadInput(f"another program changed {path} in the meantime; try again")
        os.replace(name, path)
    finally:
        with suppress(OSError):
            os.unlink(name)


# --- JSON, with comments where the program allows them ------------------------------------------------------

_SPACE = re.compile(r"[ \t\r\n\ufeff]+")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"[-+0-9.eE]+|true|false|null")
_MOST_DEPTH = 200


class _JsonText:
    """A text of JSON, and where its values are."""

    def __init__(self, text: str, comments: bool) -> None:
        self._text = text
        self._comments = comments
        self._objects: dict[tuple[str, ...], tuple[int, int, int]] = {}
        """Where each object that is reached by keys alone begins, ends, and where its last value ends."""
        self._values: dict[tuple[str, ...], tuple[int, int]] = {}
        self._has_comma: dict[tuple[str, ...], bool] = {}
        self._names: dict[tuple[str, ...], int] = {}
        """Where the name of a value begins."""
        end = self._skip(0)
        self._root, end = self._value(end, ())
        if self._skip(end) != len(text):
            self._refuse(self._skip(end))

    def _refuse(self, place: int, why: str = "invalid JSON") -> NoReturn:
        raise BadInput(f"{why}, on line {self._text.count(chr(10), 0, place) + 1}")

    def _skip(self, place: int) -> int:
        while True:
            match = _SPACE.match(self._text, place) or (
                _COMMENT.match(self._text, place) if self._comments else None
            )
            if match is None:
                return place
            place = match.end()

    def _value(self, place: int, keys: tuple[str, ...] | None) -> tuple[Any, int]:
        """The value that begins here, and where it ends. `keys`: how it is reached; None: through a list."""
        begins = place
        if keys is not None and len(keys) > _MOST_DEPTH:
            self._refuse(place, "nested too deeply")
        value: Any
        match self._text[place : place + 1]:
            case "{":
                value, place = self._members(place, keys)
            case "[":
                value, place = self._items(place)
            case '"':
                value, place = self._string(place)
            case _:
                found = _SCALAR.match(self._text, place)
                if found is None:
                    self._refuse(place)
                try:
                    value, place = json.loads(found[0]), found.end()
                except ValueError:
                    self._refuse(place)
        if keys is not None:
            self._values[keys] = begins, place
        return value, place

    def _string(self, place: int) -> tuple[str, int]:
        found = _STRING.match(self._text, place)
        if found is None:
            self._refuse(place)
        try:
            return json.loads(found[0]), found.end()
        except ValueError:
            self._refuse(place)

    def _members(self, place: int, keys: tuple[str, ...] | None) -> tuple[dict[str, Any], int]:
        begins, found = place, dict[str, Any]()
        last, place = place + 1, self._skip(place + 1)
        comma = False
        while self._text[place : place + 1] != "}":
            if found and not comma:
                self._refuse(place)
            starts = place
            name, place = self._string(place)
            if keys is not None:
                self._names[(*keys, name)] = starts
            if name in found:
                self._refuse(place, f"duplicate key {name!r}")
            place = self._skip(place)
            if self._text[place : place + 1] != ":":
                self._refuse(place)
            found[name], place = self._value(self._skip(place + 1), None if keys is None else (*keys, name))
            last, place = place, self._skip(place)
            if comma := self._text[place : place + 1] == ",":
                last, place = place + 1, self._skip(place + 1)
        if comma and not self._comments:
            self._refuse(place)
        if keys is not None:
            self._objects[keys] = begins, place + 1, last
            self._has_comma[keys] = comma
        return found, place + 1

    def _items(self, place: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        place, comma = self._skip(place + 1), True
        while self._text[place : place + 1] != "]":
            if not comma:
                self._refuse(place)
            value, place = self._value(place, None)
            found.append(value)
            place = self._skip(place)
            if comma := self._text[place : place + 1] == ",":
                place = self._skip(place + 1)
        if found and comma and not self._comments:
            self._refuse(place)
        return found, place + 1

    def with_member(self, keys: tuple[str, ...], value: dict[str, Any]) -> str:
        """The text with the value at those keys.

        Raises:
            BadInput: what is on the way there is not an object.
        """
        wanted = _with(self._root, keys, value)
        if wanted == self._root:
            return self._text
        if keys in self._values:
            first, last = self._values[keys]
            edited = self._text[:first] + self._written(_at(wanted, keys), len(keys)) + self._text[last:]
        else:
            depth = max(size for size in range(len(keys)) if keys[:size] in self._objects)
            edited = self._inserted(keys[:depth], keys[depth], _nested(keys[depth + 1 :], value))
        if _JsonText(edited, self._comments)._root != wanted:
            raise BadInput("cannot add the entry without changing other settings")
        return edited

    def without_member(self, keys: tuple[str, ...]) -> str:
        """The text without the value at those keys.

        Raises:
            BadInput: it cannot be taken out without changing something else.
        """
        if keys not in self._values:
            return self._text
        before, rest = self._text[: self._names[keys]], self._text[self._values[keys][1] :]
        follows = self._skip(len(self._text) - len(rest))
        if self._text[follows : follows + 1] == ",":
            edited = before + self._text[follows + 1 :].lstrip(" \t\r\n")
            if self._text[follows + 1 :].lstrip().startswith("}"):  # a comma after the last member
                edited = before.rstrip() + self._text[follows + 1 :]
        else:
            edited = before.rstrip().removesuffix(",") + rest
        if _JsonText(edited, self._comments)._root != _without(self._root, keys):
            raise BadInput("cannot remove the entry without changing other settings")
        return edited

    def _inserted(self, parent: tuple[str, ...], name: str, value: Any) -> str:
        begins, ends, last = self._objects[parent]
        member = f"{json.dumps(name)}: {self._written(value, len(parent) + 1)}"
        empty = last == begins + 1
        comma = "" if empty or self._has_comma[parent] else ","
        one_line = "\n" not in self._text[begins:ends] and not empty
        if one_line:
            return f"{self._text[:last]}{comma} {member}{self._text[last:]}"
        step, line_end = self._indent(), "\r\n" if "\r\n" in self._text else "\n"
        # A comment that follows the last member on its line stays with it.
        rest = (
            re.match(r"[ \t]*(?://[^\n]*|/\*[^\n]*?\*/[ \t]*(?=\n))?", self._text[last:])
            if self._comments
            else None
        )
        place = last + (rest.end() if rest and not empty else 0)
        after = self._text[place:]
        closes = "" if after.lstrip(" \t").startswith(("\n", "\r\n")) else line_end + step * len(parent)
        after = after.lstrip(" \t") if closes else after
        return f"{self._text[:last]}{comma}{self._text[last:place]}{line_end}{step * (len(parent) + 1)}{member}{closes}{after}"

    def _indent(self) -> str:
        found = re.search(r"^([ \t]+)\S", self._text, re.MULTILINE)
        return found[1] if found else "  "

    def _written(self, value: Any, depth: int) -> str:
        step = self._indent()
        text = json.dumps(value, indent=step, ensure_ascii=False)
        return text.replace("\n", ("\r\n" if "\r\n" in self._text else "\n") + step * depth)


def _at(root: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        root = root[key]
    return root


def _nested(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _with(root: Any, keys: Sequence[str], value: dict[str, Any]) -> Any:
    """`root` with the value at those keys. What an entry there has beside it (a time limit, say) stays."""
    if not keys:
        return {**root, **value} if isinstance(root, dict) else value
    if not isinstance(root, dict):
        raise BadInput(f"the parent of {keys[0]!r} is not an object")
    return {**root, keys[0]: _with(root.get(keys[0], {}), keys[1:], value)}


def _without(root: Any, keys: Sequence[str]) -> Any:
    """`root` without the value at those keys, which it has."""
    name, *rest = keys
    if rest:
        return {**root, name: _without(root[name], rest)}
    return {key: one for key, one in root.items() if key != name}


# --- TOML ---------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"^[ \t]*\[[^\n]*$", re.MULTILINE)


def _header(keys: Sequence[str], below: str = "") -> re.Pattern[str]:
    """The line that begins the table of these keys; `below`: a pattern of what may follow them."""
    names = r"\s*\.\s*".join(rf"[\"']?{key}[\"']?" for key in keys)
    return re.compile(rf"^[ \t]*\[\s*{names}\s*{below}\][^\n]*\n?", re.MULTILINE)


def _toml_without(text: str, keys: tuple[str, ...]) -> str:
    try:
        before = tomllib.loads(text)
    except RecursionError:
        raise BadInput("invalid TOML: nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"invalid TOML: {parser_mistake(error)}") from None
    servers = before.get(keys[0])
    if not isinstance(servers, dict) or keys[1] not in servers:
        return text
    wanted = _without(before, keys)
    header, edited = _header(keys, r"(?:\.[^\]\n]*)?"), text
    while (found := header.search(edited)) is not None:
        after = _HEADER.search(edited, found.end())
        lines = edited[found.start() : after.start() if after else len(edited)].splitlines(keepends=True)
        # Comments and empty lines at its end belong to what follows.
        while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        rest = edited[found.start() + len("".join(lines)) :]
        head = edited[: found.start()]
        edited = head + (rest.lstrip("\r\n") if head.endswith(("\n\n", "\r\n\r\n")) or not head else rest)
        if not rest.strip():
            edited = head.rstrip("\r\n") + head[len(head.rstrip("\r\n")) :][: 2 if "\r\n" in head else 1]
    try:
        read = tomllib.loads(edited)
    except tomllib.TOMLDecodeError:
        read = None
    if read is not None and not wanted.get(keys[0]):  # its only server: no table names the key any more
        read.setdefault(keys[0], {})
    if read != wanted:
        raise BadInput(f"{'.'.join(keys)} cannot be edited automatically; remove it by hand")
    return edited


def _toml(text: str, keys: tuple[str, ...], value: dict[str, Any]) -> str:
    try:
        before = tomllib.loads(text)
    except RecursionError:
        raise BadInput("invalid TOML: nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"invalid TOML: {parser_mistake(error)}") from None
    wanted = _with(before, keys, value)
    if wanted == before:
        return text
    line_end = "\r\n" if "\r\n" in text else "\n"
    refusal = f"{'.'.join(keys)} cannot be edited automatically; change it by hand"
    given = {name: one for name, one in _at(wanted, keys).items() if not isinstance(one, dict)}
    try:
        lines = [
            f"[{'.'.join(keys)}]",
            *(f"{name} = {json.dumps(one, ensure_ascii=False)}" for name, one in given.items()),
        ]
    except TypeError:  # a date
        raise BadInput(refusal) from None
    table = line_end.join(lines) + line_end
    found = _header(keys).search(text)
    if found is not None:
        after = _HEADER.search(text, found.end())
        ends = after.start() if after else len(text)
        block = text[found.start() : ends]
        kept = block[len(block.rstrip()) :] if after else ""
        edited = text[: found.start()] + table.rstrip("\r\n") + (kept or line_end) + text[ends:]
    else:
        gap = "" if not text.strip() else line_end if text.endswith("\n") else line_end * 2
        edited = text + gap + table
    try:
        same = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise BadInput(refusal)
    return edited
