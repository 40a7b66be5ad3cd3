"""In a worker: the file tools, confined to the workspace and kept from the session's own database.

`read`, `glob` and `grep` are the SDK's. `write` and `edit` are our own, with the SDK's rules and answers:
they compare the file that they opened with the database's files before they change a byte of it. The SDK is
imported for the first call that needs it; its import takes a second or more.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.folder import why
from watchkeeper.agents.tools.processes import IsDatabase, ProtectedFiles, Refuses
from watchkeeper.records.errors import HostFault, host_fault
from watchkeeper.records.tool_inputs import FILE_CHANGES, SUBJECT_CHANGED, state_digest

# --- In a worker: reading a plain text file without the SDK -------------------------------------------------
#
# This code answers only what is plainly safe (a relative path to a regular, small UTF-8 file inside the
# workspace). It leaves all else (images, large files, every error) to the SDK's own tool, and its answers equal
# the SDK's.

MOST_BYTES = 256 * 1024
"""The SDK's own limit for a file that is read whole."""

MEDIA = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"})


def read_plainly(workspace: Path, arguments: dict[str, Any], refuses: Refuses) -> str | None:
    """The text that `read` gives for these arguments, or None where the SDK's tool must answer.

    Raises:
        IsDatabase: the file that was opened is one that `refuses`.
    """
    name, lines = arguments.get("file_path"), arguments.get("view_range")
    if not isinstance(name, str) or not name or name.startswith(("/", "~")) or "\0" in name:
        return None
    if lines is not None and not (
        isinstance(lines, list) and len(lines) == 2 and all(isinstance(one, int) and one > 0 for one in lines)
    ):
        return None
    try:
        root = workspace.resolve(strict=True)
        target = (root / name).resolve(strict=True)
        if not target.is_relative_to(root) or target.suffix.lower() in MEDIA:
            return None
        data = _read(target, refuses)
        if data is None:
            return None
        text = data.decode("utf-8")
    except (OSError, ValueError, RuntimeError):
        return None
    if lines is None:
        return text
    return "\n".join(text.split("\n")[lines[0] - 1 : lines[1]])


def _read(target: Path, refuses: Refuses) -> bytes | None:
    """A small regular file's bytes; None for any other, and if another file replaced it after the check."""
    descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if refuses(status):
            raise IsDatabase
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != str(target):
            return None  # a folder on the way was swapped for a link
        return file.read(MOST_BYTES + 1)


MOST_PDF_BYTES = 8 * 1024 * 1024
MOST_KEPT_BYTES = 16 * 1024 * 1024
SEARCHING = frozenset({"list_folder", "glob", "grep"})
"""Tools that pass over what they cannot open, and so would answer with less than there is."""


@contextlib.contextmanager
def nothing_passed_over() -> Iterator[None]:
    """Let no file or folder be passed over because the machine ran out of something, in this single-threaded
    worker.

    Raises:
        HostFault: one was.
    """
    met: list[HostFault] = []

    def noticing(opener: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any, **options: Any) -> Any:
            try:
                return opener(*arguments, **options)
            except OSError as error:
                if (fault := host_fault(error)) is not None:
                    met.append(fault)
                raise

        return opened

    openers = [
        (module, name, getattr(module, name))
        for module, name in ((io, "open"), (os, "open"), (os, "scandir"))
    ]
    for module, name, opener in openers:
        setattr(module, name, noticing(opener))
    try:
        yield
    finally:
        for module, name, opener in openers:
            setattr(module, name, opener)
    if met:
        raise met[0]


class FileTools:
    """Runs `list_folder`, `read`, `glob`, `grep`, `write` and `edit` in one workspace."""

    def __init__(self, workspace: str, protected: ProtectedFiles | None = None) -> None:
        self._workspace = Path(workspace)
        self._protected = protected or ProtectedFiles()
        self._tools: dict[str, Any] = {}

    async def run(self, request: dict[str, Any]) -> tuple[Any, bool]:
        """Run one call; faults that a model can mend come back as error texts."""
        name, arguments = str(request["tool"]), request["arguments"]
        if not self._workspace.is_dir():
            return f"{name}: the workspace {self._workspace} no longer exists", True
        self._protected.look()
        try:
            if name in FILE_CHANGES:
                return self._change(name, arguments, str(request.get("subject_digest") or ""))
            if name not in SEARCHING:
                return await self._run(name, arguments)
            with nothing_passed_over():
                return (
                    self._list_folder(arguments)
                    if name == "list_folder"
                    else await self._run(name, arguments)
                )
        except IsDatabase as refusal:
            path = arguments.get("file_path") or arguments.get("path")
            return f"{name}: {path}: {refusal}", True

    async def _run(self, name: str, arguments: dict[str, Any]) -> tuple[Any, bool]:
        if name == "read":
            text = read_plainly(self._workspace, arguments, self._protected.refuses)
            if text is not None:
                return text, False
        tool = self._sdk_tools().get(name)
        if tool is None:
            return f"no tool {name!r}", True
        from anthropic.lib.tools import ToolError

        target = self._target(arguments.get("file_path") or arguments.get("path") or ".")
        if target is not None:
            self._protected.check(target)
        try:
            content = await tool.call(arguments)
        except ToolError as error:
            if (shortage := host_fault(error)) is not None:
                raise shortage from error
            return self._relative(error.content), True
        if target is not None:
            # Again: the file may have got the name while the tool opened it.
            self._protected.look()
            self._protected.check(target)
        if name == "grep" and target is not None:
            content = self._without_database(str(content), target)
        return (self._told(name, content) if isinstance(content, str) else list(content)), False

    def _change(self, name: str, arguments: dict[str, Any], approved: str) -> tuple[str, bool]:
        """Run `write` or `edit`. `approved`: the digest of the file that a person approved the change of;
        empty: none did."""
        try:
            change = self._write if name == "write" else self._edit
            return change(approved, **arguments), False
        except _SubjectChanged:
            return SUBJECT_CHANGED, True
        except ValueError as error:
            if (fault := host_fault(error)) is not None:
                raise fault from error
            return f"{name}: {error}", True

    def _write(self, approved: str, /, file_path: str, content: str) -> str:
        if self._is_odd(file_path):
            raise ValueError(f"{file_path}: not a regular file")
        data, target = content.encode(), self._resolved(file_path)
        with _system_faults(file_path):
            may_exist = approved != state_digest(target, None)
            may_be_new = not approved or not may_exist
            if may_be_new:
                target.parent.mkdir(parents=True, exist_ok=True)
            self._protected.check(target)
            try:
                if not may_be_new:
                    raise FileExistsError
                with self._opened(target, file_path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
                    _replace(descriptor, data, made=target)
            except FileExistsError:
                if not may_exist:
                    raise _SubjectChanged from None
                try:
                    with self._opened(target, file_path, os.O_RDWR) as descriptor:
                        _check_subject(approved, target, descriptor)
                        _replace(descriptor, data)
                except FileNotFoundError:
                    if approved:
                        raise _SubjectChanged from None
                    raise
        return f"wrote {len(content)} bytes to {file_path}"

    def _edit(
        self, approved: str, /, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> str:
        target = self._resolved(file_path)
        with _system_faults(file_path), self._opened(target, file_path, os.O_RDWR) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > MOST_BYTES:
                raise ValueError(
                    f"{file_path} is {size} bytes, exceeds {MOST_BYTES}-byte limit."
                    " The edit tool loads the whole file and cannot modify a file this large."
                )
            _check_subject(approved, target, descriptor)
            try:
                text = _content(descriptor).decode()
            except UnicodeDecodeError:
                raise ValueError(f"{file_path}: not valid UTF-8 text (cannot edit binary files)") from None
            count = text.count(old_string)
            if count == 0:
                if _has_line_numbers(old_string):
                    raise ValueError(
                        f"old_string begins with line numbers. `read` adds them; they are not in {file_path}."
                        " Pass the text without them"
                    )
                raise ValueError(f"old_string not found in {file_path}")
            if not replace_all and count > 1:
                raise ValueError(f"old_string appears {count} times in {file_path} (must be unique)")
            _replace(descriptor, text.replace(old_string, new_string).encode())
        return f"edited {file_path} ({count} replacement(s))"

    @contextlib.contextmanager
    def _opened(self, target: Path, file_path: str, flags: int) -> Iterator[int]:
        """A descriptor of a regular file that is none of the database's; the file is as it was.

        Raises:
            IsDatabase: it is one of them.
            ValueError: it is no regular file, or is also a file outside the workspace.
        """
        # Not through a link that came since the path was resolved, and not waiting for the reader of a pipe.
        descriptor = os.open(
            target, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666
        )
        try:
            status = os.fstat(descriptor)
            if self._protected.refuses(status):
                raise IsDatabase
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{file_path}: not a regular file")
            if status.st_nlink > 1 and self._is_linked_outside(status):
                raise ValueError(
                    f"{file_path}: not written: the file has a hard link outside the workspace."
                    " Delete this path first, then write a new file"
                )
            yield descriptor
        finally:
            os.close(descriptor)

    def _is_linked_outside(self, status: os.stat_result) -> bool:
        """Whether fewer names of a file are in the workspace than it has."""
        names = 0
        for folder, _, files in os.walk(self._workspace):
            for name in files:
                with contextlib.suppress(OSError):
                    found = os.lstat(os.path.join(folder, name))
                    names += (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)
                if names >= status.st_nlink:
                    return False
        return True

    def _resolved(self, file_path: str) -> Path:
        """The file's own path, as the SDK gives it. The SDK itself answers for links that lead nowhere, and says what is wrong.

        Raises:
            ValueError: it is outside the workspace.
        """
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            root = self._workspace.resolve()
            target = _where(Path(os.path.normpath(root / file_path)))
            if target.is_relative_to(root):
                return target
        from anthropic.lib.tools.agent_toolset import resolve_path

        return resolve_path(self._sdk_context(), file_path)

    def _target(self, path: Any) -> Path | None:
        """As `_resolved`; None where the tool itself says what is wrong with the path."""
        try:
            return self._resolved(path)
        except (ValueError, TypeError):
            return None

    def _without_database(self, found: str, searched: Path) -> str:
        """The lines that a search found, without those from the database's files."""
        hidden = tuple(
            f"{os.fsencode(path).decode(errors='replace')}:" for path in self._protected.below(searched)
        )
        if not hidden:
            return found
        return "\n".join(line for line in found.split("\n") if not line.startswith(hidden)) or "no matches"

    def _is_odd(self, name: Any) -> bool:
        """Whether it is a pipe or a device: opening one to write may wait for a reader. The SDK reports all
        other errors."""
        try:
            mode = os.stat(self._workspace / name).st_mode
        except (OSError, TypeError, ValueError):
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    def _list_folder(self, arguments: dict[str, Any]) -> tuple[str, bool]:
        from watchkeeper.agents.tools.folder import list_page

        try:
            return list_page(self._workspace, **arguments), False
        except ValueError as error:
            return f"list_folder: {error}", True

    def _sdk_tools(self) -> dict[str, Any]:
        if not self._tools:
            from anthropic.lib.tools import agent_toolset as sdk

            context = self._sdk_context()
            makers = (sdk.beta_read_tool, sdk.beta_glob_tool, sdk.beta_grep_tool)
            self._tools = {tool.name: tool for tool in (make(context) for make in makers)}
        return self._tools

    def _sdk_context(self) -> Any:
        from anthropic.lib.tools.agent_toolset import AgentToolContext

        return AgentToolContext(workdir=str(self._workspace), max_pdf_bytes=MOST_PDF_BYTES)

    def _told(self, name: str, text: str) -> str:
        if name not in ("glob", "grep"):
            return text
        from anthropic.lib.tools.agent_toolset import GLOB_RESULT_LIMIT

        text = self._relative(text)
        if name == "glob" and text.count("\n") + 1 >= GLOB_RESULT_LIMIT:
            text += f"\n[showing only the newest {GLOB_RESULT_LIMIT}; narrow the pattern, or use list_folder]"
        return text

    def _relative(self, content: Any) -> Any:
        """The text with the workspace's own path taken off the front of its lines: shorter, and what the
        tools take."""
        if not isinstance(content, str):
            return content
        prefix = f"{self._workspace.resolve()}/"
        return "\n".join(line.removeprefix(prefix) for line in content.split("\n"))


def _where(path: Path) -> Path:
    """Where a path leads, whose end need not exist yet.

    Raises:
        OSError, RuntimeError: a link on the way leads nowhere, or a part of it cannot be looked at.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _where(path.parent) / path.name
    return path.resolve(strict=True)


_LINE_NUMBER = re.compile(r" {0,4}\d+\t")


def _has_line_numbers(text: str) -> bool:
    """Whether lines of a text begin as those that `read` gives; the first may begin in the middle of one."""
    lines = [line for line in text.split("\n") if line]
    return any(map(_LINE_NUMBER.match, lines)) and all(map(_LINE_NUMBER.match, lines[1:]))


class _SubjectChanged(Exception):
    """The file is not the one that a person approved the change of."""


def _check_subject(approved: str, target: Path, descriptor: int) -> None:
    """Refuse to change another file than the approved one, as late as can be.

    Raises:
        _SubjectChanged: it is another one, or holds something else.
    """
    if approved and state_digest(target, descriptor) != approved:
        raise _SubjectChanged


def _replace(descriptor: int, data: bytes, made: Path | None = None) -> None:
    """Make these bytes the whole of an open file; `made` is its path if it was made for them.

    What goes beyond its end is written first. Where the machine runs out of something, a file that was made is
    removed, and any other gets its content back (except a very large one).

    Raises:
        HostFault: the machine ran out of something; `began` unless the file is as it was.
    """
    size = os.fstat(descriptor).st_size
    held = _content(descriptor) if size <= MOST_KEPT_BYTES else None
    try:
        try:
            _write_at(descriptor, size, data[size:])
        except OSError:
            os.ftruncate(descriptor, size)
            raise
        _write_at(descriptor, 0, data[:size])
        os.ftruncate(descriptor, len(data))
    except Exception as error:
        fault = host_fault(error)
        if fault is None:
            raise
        if made is not None:
            made.unlink(missing_ok=True)
        undone = made is not None or _gets_back(descriptor, held)
        raise HostFault(str(fault), fault.shortage, began=not undone) from error


def _gets_back(descriptor: int, held: bytes | None) -> bool:
    """Give an open file its content back; False where that is not known, or cannot be written."""
    try:
        if held is not None:
            os.ftruncate(descriptor, len(held))
            if _content(descriptor) != held:
                _write_at(descriptor, 0, held)  # over blocks that the file has
    except OSError:
        return False
    return held is not None


def _write_at(descriptor: int, offset: int, data: bytes) -> None:
    os.lseek(descriptor, offset, os.SEEK_SET)
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _content(descriptor: int) -> bytes:
    """What an open file holds, from its start."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


@contextlib.contextmanager
def _system_faults(file_path: str) -> Iterator[None]:
    """Turn an error of the system into a few words, without a path of the host. A host fault passes
    unchanged.

    Raises:
        ValueError: in its place.
    """
    try:
        yield
    except OSError as error:
        if host_fault(error) is not None:
            raise
        raise ValueError(f"{file_path}: {why(error)}") from error
