"""`list_folder`: what a folder holds, in pages of bounded size, and what one file of source holds.

Promises: the same folder gives the same pages, in one order, wherever a page ends; nothing outside the
workspace is listed, no link is followed, no special file is opened; each line, byte and mark is counted once. Fixed
rules and tables, no guessing, so that every count agrees; a file is read once, in pieces, and never held whole.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import stat
import subprocess
import tempfile
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal

from watchkeeper.agents.tools.processes import Refuses, refuses_nothing
from watchkeeper.records.messages import ToolSpec

# --- One file: its language, lines, TODOs, and whether it starts something or tests something -----------

OTHER = "other"
"""A text file that no row of the tables names."""

BINARY = "binary"
"""A file with a NUL byte in its first 8 KiB, whatever its name says."""

_NAMES = {
    "Dockerfile": "Dockerfile Containerfile",
    "Makefile": "Makefile GNUmakefile makefile",
    "CMake": "CMakeLists.txt",
    "Ruby": "Gemfile Rakefile Podfile Vagrantfile",
    "Starlark": "BUILD WORKSPACE BUILD.bazel WORKSPACE.bazel",
    "Groovy": "Jenkinsfile",
    "Just": "justfile Justfile",
    "Nix": "flake.lock",
    "Go module": "go.mod go.sum go.work",
    "JSON": ".babelrc .eslintrc .prettierrc composer.lock Pipfile.lock",
    "TOML": "Cargo.lock poetry.lock uv.lock Pipfile",
    "Shell": ".bashrc .bash_profile .profile .zshrc",
    "Ignore list": ".gitignore .dockerignore .npmignore .eslintignore .prettierignore .hgignore",
    "Git config": ".gitattributes .gitmodules .gitconfig",
    "INI": ".editorconfig .npmrc .pylintrc .flake8 .coveragerc",
    "Text": "LICENSE LICENCE COPYING NOTICE AUTHORS CONTRIBUTORS README CHANGES CHANGELOG INSTALL TODO VERSION "
    "METADATA RECORD WHEEL INSTALLER REQUESTED PKG-INFO py.typed",
}

_EXTENSIONS = {
    "Python": "py pyi pyw pyx pxd",
    "Jupyter Notebook": "ipynb",
    "JavaScript": "js mjs cjs jsx",
    "TypeScript": "ts mts cts tsx",
    "Vue": "vue",
    "Svelte": "svelte",
    "HTML": "html htm xhtml",
    "CSS": "css",
    "Sass": "scss sass",
    "Less": "less",
    "C": "c h",
    "C++": "cc cpp cxx hh hpp hxx ipp tpp",
    "C#": "cs csx",
    "Objective-C": "m mm",
    "CUDA": "cu cuh",
    "Go": "go",
    "Rust": "rs",
    "Java": "java",
    "Kotlin": "kt kts",
    "Scala": "scala sc",
    "Groovy": "groovy gradle",
    "Swift": "swift",
    "Dart": "dart",
    "Ruby": "rb rake gemspec erb",
    "PHP": "php phtml",
    "Perl": "pl pm t",
    "Lua": "lua",
    "R": "r rmd",
    "Julia": "jl",
    "Haskell": "hs lhs",
    "OCaml": "ml mli",
    "F#": "fs fsi fsx",
    "Elixir": "ex exs",
    "Erlang": "erl hrl",
    "Clojure": "clj cljs cljc edn",
    "Lisp": "lisp el scm",
    "Zig": "zig",
    "Nim": "nim",
    "D": "d",
    "Fortran": "f f77 f90 f95 f03 for",
    "Pascal": "pas pp",
    "Ada": "adb ads",
    "COBOL": "cob cbl",
    "Assembly": "s asm",
    "Verilog": "v sv svh vh",
    "VHDL": "vhd vhdl",
    "Shell": "sh bash zsh fish ksh",
    "PowerShell": "ps1 psm1 psd1",
    "Batch": "bat cmd",
    "SQL": "sql",
    "GraphQL": "graphql gql",
    "Protocol Buffers": "proto",
    "Thrift": "thrift",
    "Terraform": "tf tfvars hcl",
    "Nix": "nix",
    "Starlark": "bzl star",
    "CMake": "cmake",
    "Makefile": "mk mak",
    "Meson": "meson",
    "Jinja": "j2 jinja jinja2",
    "Mustache": "mustache hbs handlebars",
    "XML": "xml xsd xsl xslt svg plist rng",
    "JSON": "json jsonc json5 jsonl ndjson geojson webmanifest",
    "YAML": "yaml yml",
    "TOML": "toml",
    "INI": "ini cfg conf properties",
    "CSV": "csv tsv",
    "Markdown": "md markdown mdx",
    "reStructuredText": "rst",
    "AsciiDoc": "adoc asciidoc",
    "TeX": "tex sty cls bib",
    "Text": "txt text log",
    "Diff": "diff patch",
    "Source map": "map",
    "Gettext": "po pot",
    "Dotenv": "env",
    "Vim script": "vim",
    "WebAssembly text": "wat",
    "Solidity": "sol",
    "GLSL": "glsl vert frag",
    "HLSL": "hlsl",
    "Tcl": "tcl",
    "Awk": "awk",
}

_INTERPRETERS = {
    "Shell": "sh bash zsh dash ksh fish",
    "Python": "python python2 python3 pypy pypy3",
    "JavaScript": "node nodejs bun",
    "TypeScript": "deno ts-node tsx",
    "Ruby": "ruby",
    "Perl": "perl",
    "PHP": "php",
    "Lua": "lua luajit",
    "R": "Rscript",
    "Tcl": "tclsh wish",
    "Awk": "awk gawk mawk",
    "PowerShell": "pwsh",
    "Julia": "julia",
    "Elixir": "elixir",
    "Groovy": "groovy",
}


def _inverted(table: dict[str, str]) -> dict[str, str]:
    return {word: language for language, words in table.items() for word in words.split()}


_BY_NAME = _inverted(_NAMES)
_BY_EXTENSION = _inverted(_EXTENSIONS)
_BY_INTERPRETER = _inverted(_INTERPRETERS)


def language_of(name: str, first_line: bytes = b"") -> str:
    """The language of a text file called `name` (no folders) that begins with `first_line`; `other` if
    unknown. The whole name decides first, then the extension, then the `#!` line."""
    stem, _, extension = name.rpartition(".")
    by_extension = _BY_EXTENSION.get(extension.lower()) if stem else None
    return _BY_NAME.get(name) or by_extension or _BY_INTERPRETER.get(interpreter(first_line), OTHER)


def interpreter(first_line: bytes) -> str:
    """The program that a `#!` line names, without folder, `env` and version (`python3.12` is `python`); or
    empty."""
    words = first_line[2:200].decode("utf-8", "replace").split() if first_line.startswith(b"#!") else []
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-") and "=" not in word]
    name = next((name for name in names if name != "env"), "")
    return name if name in _BY_INTERPRETER else name.rstrip("0123456789.")


# Which files start something, and which are tests.

MANIFEST_BYTES = 1 << 20
"""A larger manifest is not parsed."""

MANIFESTS = frozenset({"pyproject.toml", "package.json", "entry_points.txt"})
"""Files whose content is parsed for the commands that they declare."""

_MAIN_GUARD = re.compile(rb"""\nif[ \t]+__name__[ \t]*==[ \t]*(?:"__main__"|'__main__')""")
_GUARD_BYTES = 200
"""Bytes kept from one chunk for the next, so that no guard is cut in two."""
_MAIN_PROGRAMS = frozenset({"main.go", "main.rs", "main.c", "main.cpp"})

_TEST_FOLDERS = frozenset({b"test", b"tests", b"__tests__", b"spec", b"specs"})
_TEST_NAMES = re.compile(
    rb"test_.*\.py|.*_test\.(?:py|go|cc|cpp|rb|exs|dart)|.*_spec\.rb|.*\.(?:test|spec)\.[cm]?[jt]sx?|.*Tests?\.(?:java|kt|cs|swift)"
)


def is_test(names: tuple[bytes, ...]) -> bool:
    """By its name (`test_*.py`, `*_test.go`, `*.spec.ts`, …) or for lying under a folder named `tests` or the
    like."""
    return not _TEST_FOLDERS.isdisjoint(names[:-1]) or _TEST_NAMES.fullmatch(names[-1]) is not None


def _declared(name: str, content: bytes) -> str | None:
    """The commands that a manifest declares; None when there are none or it cannot be parsed."""
    label, commands = "console_scripts", []
    try:
        text = content.decode("utf-8")
        if name == "pyproject.toml":
            document = tomllib.loads(text)
            scripts = _at(document, "project", "scripts"), _at(document, "tool", "poetry", "scripts")
            label, commands = (
                "project.scripts",
                [*next((one for one in scripts if one and isinstance(one, dict)), ())],
            )
        elif name == "package.json":
            document = json.loads(text)
            label = "bin" if isinstance(_at(document, "bin"), dict | str) else "main"
            given = _at(document, label)
            commands = [given] if isinstance(given, str) else [*given] if label == "bin" else []
        else:
            parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
            parser.optionxform = str  # type: ignore[assignment,method-assign]  # command names keep their case
            parser.read_string(text)
            commands = parser.options(label) if parser.has_section(label) else []
    except (ValueError, RecursionError, configparser.Error):
        return None
    listed = _printable(f"{label}: {', '.join(sorted(map(str, commands)))}", 80)
    return listed if commands else None


def _at(document: object, *keys: str) -> Any:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _printable(text: str, width: int) -> str:
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= width else text[: width - 1] + "…"


# TODO and FIXME: whole words in upper case, at most one a line (the first).

_MARK = re.compile(rb"\b(TODO|FIXME)\b[^\n]*")
TEXT_CHARACTERS = 120
_TEXT_BYTES = 4 * TEXT_CHARACTERS + 4
HOLD_BACK = _TEXT_BYTES + 16
"""Bytes of a long line kept from one chunk for the next, so that no word and no shown text is cut."""


@dataclass(frozen=True, slots=True)
class Todo:
    """One line that says TODO or FIXME."""

    line: int
    kind: str
    text: str
    """From the word on, printable, at most `TEXT_CHARACTERS`."""
    offset: int
    """Where in the file the word ends: a scan may go on from here, with the rest of this line left out."""


class TodoScanner:
    """Feed it a file's bytes in order; it gives the TODOs, each once, however the chunks fall.

    A scan that starts amid a file, at `offset` on `line`, leaves out the rest of that line where it is
    `listed`: that is how a later page goes on.
    """

    def __init__(self, offset: int = 0, line: int = 1, *, listed: bool = False) -> None:
        self._buffer = b""
        self._offset = offset
        """Where the buffer's first byte is in the file."""
        self._seen = 0
        """Bytes of the buffer that were scanned before: the last one, which decides where a word begins."""
        self._line = line
        self._listed = listed
        """The mark of this line is known."""

    def feed(self, chunk: bytes, *, last: bool = False) -> list[Todo]:
        """The TODOs that are now complete. `last`: there are no more bytes."""
        buffer = self._buffer + chunk
        whole = buffer.rfind(b"\n") + 1
        end = len(buffer) if last else max(self._seen, whole, len(buffer) - HOLD_BACK)
        position = self._seen
        if self._listed:
            newline = buffer.find(b"\n", position, end)
            position = newline if newline >= 0 else end
        found: list[Todo] = []
        # Plain searches are far faster than the pattern, and most chunks hold neither word.
        promising = buffer.find(b"TODO", position) >= 0 or buffer.find(b"FIXME", position) >= 0
        for match in _MARK.finditer(buffer, position) if promising else ():
            if match.start() >= end:
                break
            self._line += buffer.count(b"\n", position, match.start())
            position = match.start()
            text = match[0][:_TEXT_BYTES].decode("utf-8", "replace")
            text = _printable(_printable(text, _TEXT_BYTES).strip(), TEXT_CHARACTERS)
            found.append(Todo(self._line, match[1].decode(), text, self._offset + match.end(1)))
        newlines = buffer.count(b"\n", position, end)
        self._line += newlines
        self._listed = (self._listed or bool(found)) and not newlines
        keep = max(0, end - 1)
        self._buffer, self._seen = buffer[keep:], end - keep
        self._offset += keep
        return found


# One regular file, examined.

SNIFFED_BYTES = 8 * 1024
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileFigures:
    """What one file holds."""

    size: int
    language: str
    lines: int | None = None
    """Newline characters, plus one for a last line without; None for a binary or unreadable file."""
    todos: tuple[Todo, ...] = ()
    """The first ones, in order."""
    more_todos: bool = False
    entry_point: str | None = None
    """Why it is a place where something starts."""
    unreadable: str | None = None
    """Why its content could not be read."""

    @property
    def binary(self) -> bool:
        return self.language == BINARY


def why(error: OSError) -> str:
    """An error of the system in a few lower-case words, without paths: `permission denied`."""
    return os.strerror(error.errno).lower() if error.errno else "cannot be read"


def examine(
    path: bytes, *, size: int, mode: int, max_todos: int, refuses: Refuses = refuses_nothing
) -> FileFigures:
    """Read the file through, once. `size` and `mode` are from its folder entry, used when it cannot be
    opened.

    A file that `refuses` is not read.
    """
    name = os.path.basename(path).decode("utf-8", "replace")
    try:
        with _opened(path, refuses) as file:
            status = os.fstat(file.fileno())
            return _examined(file, name, status.st_size, status.st_mode, max_todos)
    except OSError as error:
        return FileFigures(size, language_of(name), unreadable=why(error))


def later_todos(
    path: bytes, *, offset: int, line: int, count: int, refuses: Refuses
) -> tuple[list[Todo], bool]:
    """Up to `count` TODOs after the one that ended at `offset` on `line`, and whether there are more still.

    A file that can no longer be read has none.
    """
    scanner = TodoScanner(offset, line, listed=True)
    found: list[Todo] = []
    try:
        with _opened(path, refuses) as file:
            file.seek(offset)
            for chunk in chain(_chunks(file), (b"",)):
                found += scanner.feed(chunk, last=not chunk)
                if len(found) > count:
                    break
    except OSError:
        return [], False
    return found[:count], len(found) > count


def _opened(path: bytes, refuses: Refuses) -> FileIO:
    # Not through a link, and not blocking should the file have become a pipe since its folder was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or refuses(status):
        os.close(descriptor)
        raise OSError("no longer a regular file, or of the run's own database")
    return os.fdopen(descriptor, "rb", buffering=0)


def _chunks(file: FileIO) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def _examined(file: FileIO, name: str, size: int, mode: int, max_todos: int) -> FileFigures:
    head = file.read(SNIFFED_BYTES)
    if b"\0" in head:
        return FileFigures(size, BINARY)
    first_line = head.partition(b"\n")[0] if head.startswith(b"#!") else b""
    language = language_of(name, first_line)
    scanner, todos, lines = TodoScanner(), list[Todo](), 0
    guarded, before, last = False, b"\n", b"\n"
    for chunk in chain((head,), _chunks(file)):
        lines += chunk.count(b"\n")
        if len(todos) <= max_todos:
            todos += scanner.feed(chunk)
        if language == "Python" and not guarded:
            window = before + chunk
            guarded = b"__main__" in window and _MAIN_GUARD.search(window) is not None
            before = window[-_GUARD_BYTES:]
        last = chunk[-1:] or last
    todos += scanner.feed(b"", last=True)
    declared = None
    if name in MANIFESTS and size <= MANIFEST_BYTES:
        file.seek(0)
        declared = _declared(name, file.read(MANIFEST_BYTES))
    starts = (  # The first rule that holds gives the reason.
        (name == "__main__.py", "python -m"),
        (declared is not None, declared),
        (guarded, 'if __name__ == "__main__"'),
        (name in _MAIN_PROGRAMS, "main program"),
        (bool(first_line and mode & 0o111), "executable script"),
    )
    return FileFigures(
        size=size,
        language=language,
        lines=lines + (last != b"\n"),
        todos=tuple(todos[:max_todos]),
        more_todos=len(todos) > max_todos,
        entry_point=next((reason for holds, reason in starts if holds), None),
    )


# --- The folder -----------------------------------------------------------------------------------------

# File names as text: any bytes that a file system allows, on one harmless line, and read back exactly.
#
# A shown name is the UTF-8 text of the name, in which a backslash is doubled, a byte that is not UTF-8 or a
# control character is `\xNN`, and an invisible or direction-changing character is `\uNNNN` (`\UNNNNNNNN`
# beyond the first plane).

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPE = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def show(raw: bytes) -> str:
    """The name as printable text on one line; `unshow` gives the bytes back."""
    return "".join(map(_shown_character, raw.decode("utf-8", "surrogateescape")))


def _shown_character(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # a control character, or a byte that is not UTF-8
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unshow(text: str) -> bytes:
    """The bytes of a shown name. A backslash that begins no escape is a backslash."""
    return _ESCAPE.sub(_unescaped, text).encode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[str]) -> str:
    byte, short, long = match.groups()
    if byte:
        return bytes.fromhex(byte).decode("ascii", "surrogateescape")
    code = int(short or long or "5c", 16)
    # A code beyond Unicode, or half of a surrogate pair, names no character: it stays as it was written.
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else match.group()


def components(shown: str) -> tuple[bytes, ...]:
    """The names along a workspace path; empty for the workspace itself.

    Raises:
        ValueError: the path is absolute, climbs with `..`, or holds a NUL.
    """
    raw = unshow(shown)
    names = tuple(name for name in raw.split(b"/") if name not in (b"", b"."))
    if raw.startswith(b"/"):
        raise ValueError(f"{shown!r} is absolute; give a path inside the workspace, such as '.' or 'src'.")
    if b".." in names:
        raise ValueError(f"{shown!r} leaves the workspace; '..' is not allowed.")
    if b"\0" in raw:
        raise ValueError("A path cannot hold a NUL character.")
    return names


def folder_in(workspace: Path, names: tuple[bytes, ...]) -> bytes:
    """The real path of a folder of the workspace, links on the way resolved.

    Raises:
        ValueError: it is not there, is no folder, or a link on the way leads out of the workspace.
    """
    root = os.path.realpath(os.fsencode(workspace))
    real, shown = os.path.realpath(os.path.join(root, *names)), _shown(names) or "."
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        raise ValueError(f"{shown!r} leads out of the workspace through a link.")
    if not os.path.lexists(real):
        raise ValueError(f"There is no {shown!r} in the workspace.")
    if not os.path.isdir(real):
        raise ValueError(f"{shown!r} is not a folder; use `read` for a file.")
    return real


# Walking a folder in one fixed order, from any place on: parents before children, names by their bytes.
#
# The order of paths is the order of their tuples of names, so that a place is enough to go on from: what lies
# before it is never visited again, and what has since appeared or vanished elsewhere does no harm.

Names = tuple[bytes, ...]
Kind = Literal["file", "dir", "link", "other", "skipped"]

SKIPPED = frozenset({b".git", b".hg", b".svn", b".venv"})
"""Version control's own data, and virtual environments, also by their `pyvenv.cfg`: never entered, and listed as skipped."""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a folder."""

    names: Names
    """Its path from the folder where the walk began."""
    kind: Kind
    size: int = 0
    """Bytes, for a regular file."""
    mode: int = 0
    unreadable: str | None = None
    """Why a folder could not be listed, or an entry not be looked at."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins."""

    names: Names = ()
    inclusive: bool = False
    """At the path itself, or at what follows it (its children, if it is a folder)."""
    todos: tuple[int, int, int] | None = None
    """Amid a file's TODOs: how many are listed, the byte and the line of the last."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What to list of a folder."""

    recursive: bool = False
    """With everything below sub-folders; else the direct children alone."""
    only: str | None = None
    """The direct children that are sub-folders (`folders`), or those that are not (`files`). What is skipped
    counts as no folder."""
    start: _Place = _Place()
    until: Names | None = None
    """The last path, with all below it."""
    skip: frozenset[Names] = frozenset()
    """Paths to leave out, with all below them."""
    ignored: frozenset[Names] = frozenset()
    """What git ignores: as if it were not there."""

    def below(self, names: Names) -> Walk:
        """A walk of everything below one folder of this walk."""
        return Walk(recursive=True, ignored=_relative(self.ignored, names))


def _relative(paths: Iterable[Names], base: Names) -> frozenset[Names]:
    return frozenset(one[len(base) :] for one in paths if one[: len(base)] == base)


GIT_SECONDS = 20.0


def ignored_by_git(root: str) -> frozenset[Names]:
    """What git would not list of a folder, by the ignore rules that hold there; of an ignored folder, the folder alone.
    A folder outside of every repository is read with its own `.gitignore` files. Empty if there is no git."""
    wanted = ["ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # The repository is hostile: nothing that its configuration names may run.
    git = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]

    def output(*arguments: str) -> bytes | None:
        done = subprocess.run(
            [*git, *arguments], cwd=root, env=environ | {"GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=GIT_SECONDS,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else None

    try:
        found = output(*wanted)
        if found is None:
            with tempfile.TemporaryDirectory() as empty:
                if output("init", "--quiet", "--bare", empty) is not None:
                    found = output(f"--git-dir={empty}", f"--work-tree={root}", *wanted)
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    paths = (tuple(one.rstrip(b"/").split(b"/")) for one in (found or b"").split(b"\0") if one)
    return frozenset(one for one in paths if one not in ((b"",), (b".",)))


def children(folder: bytes) -> tuple[list[os.DirEntry[bytes]], str | None]:
    """A folder's entries, sorted by name; and why there are none, if it could not be listed."""
    try:
        with os.scandir(folder) as listing:
            return sorted(listing, key=lambda entry: entry.name), None
    except OSError as error:
        return [], why(error)


def walk(root: bytes, wanted: Walk) -> Iterator[Found]:
    """What is `wanted` of `root`, in order.

    Raises:
        OSError: the root itself cannot be listed.
    """
    entries, unreadable = children(root)
    if unreadable:
        raise OSError(0, unreadable)
    stack: list[tuple[Names, Iterator[os.DirEntry[bytes]]]] = [((), iter(entries))]
    while stack:
        prefix, rest = stack[-1]
        entry = next(rest, None)
        if entry is None:
            stack.pop()
            continue
        names = (*prefix, entry.name)
        ahead = wanted.start.names[: len(names)]
        if wanted.until is not None and names[: len(wanted.until)] > wanted.until:
            return
        if names < ahead:
            continue
        listed = names == ahead and (len(names) < len(wanted.start.names) or not wanted.start.inclusive)
        if names in wanted.ignored:
            continue
        found = _found(entry, names, wanted.skip)
        if wanted.only and not prefix and (found.kind == "dir") != (wanted.only == "folders"):
            continue
        if wanted.recursive and found.kind == "dir":
            entries, unreadable = children(entry.path)
            found = Found(names, "dir", unreadable=unreadable)
            stack.append((names, iter(entries)))
        if not listed:
            yield found


def _found(entry: os.DirEntry[bytes], names: Names, skip: frozenset[Names]) -> Found:
    if entry.name in SKIPPED or names in skip:
        return Found(names, "skipped")
    try:
        if entry.is_symlink():
            return Found(names, "link")
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        return Found(names, "other", unreadable=why(error))
    if stat.S_ISREG(status.st_mode):
        return Found(names, "file", status.st_size, status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return Found(names, "other")
    return Found(names, "skipped" if os.path.lexists(os.path.join(entry.path, b"pyvenv.cfg")) else "dir")


def count_below(folder: bytes, wanted: Walk) -> dict[str, Any]:
    """Regular files under `folder` and their bytes, at any depth; and why a folder could not be listed, if
    one could not."""
    counted: dict[str, Any] = {"files": 0, "bytes": 0}
    try:
        for found in walk(folder, wanted):
            counted["files"] += found.kind == "file"
            counted["bytes"] += found.size
            if found.kind == "dir" and found.unreadable:
                counted.setdefault("unreadable", found.unreadable)
    except OSError as error:
        counted["unreadable"] = error.strerror
    return counted


# One page of a folder, as JSON text of bounded size, and the cursor of the next.

MAX_ENTRIES = 200
DEFAULT_BYTES = 6_000
LEAST_BYTES, MOST_BYTES = 1_000, 60_000
MAX_TODOS = 40
"""A page shows at most so many of one entry; the others follow on the next pages, in parts."""
READ_BYTES = 1 << 30
"""A page ends after the file that brings what was read for it to this, so that no page takes minutes."""
_ENVELOPE_BYTES = 260

_CURSOR = re.compile(r"(after|from|todos(\d{1,12}),(\d{1,18}),(\d{1,15})):(.+)", re.DOTALL)
_TOTALS = {"file": "files", "dir": "folders", "link": "links"}


class _Page:
    """Entries gathered so far, and how many bytes their JSON takes."""

    def __init__(self, base: Names, budget: int, limit: int) -> None:
        self.entries: list[str] = []
        self.skipped: list[str] = []
        self.totals = dict.fromkeys((*_TOTALS.values(), "other", "bytes", "lines", "todos"), 0)
        self.base = base
        self.room = budget - _ENVELOPE_BYTES
        self._limit = limit

    def add(self, entry: dict[str, Any], todos: Sequence[Todo] = (), more_todos: bool = False) -> str | None:
        """Add an entry with as many of its TODOs as fit, but at least one; the cursor of the rest, empty if all
        fit. None: the entry does not fit. Every page holds one entry, so that paging always ends.
        """
        room = (MOST_BYTES if self.entries else self.room) - len(_dumps(entry).encode()) - 40
        rows = [[todo.line, todo.kind, todo.text] for todo in todos]
        sizes = accumulate(len(_dumps([row]).encode()) for row in rows)
        fitting = max(1, sum(size <= room for size in sizes))
        last = todos[:fitting][-1] if more_todos or fitting < len(rows) else None
        fields = {"todos": rows[:fitting], "more_todos": last is not None}
        text = _dumps(entry | {name: value for name, value in fields.items() if value})
        size = len(text.encode()) + 1
        if self.entries and (size > self.room or len(self.entries) >= self._limit):
            return None
        self.entries.append(text)
        self.room -= size
        self.totals["todos"] += len(rows[:fitting])
        before = entry.get("todos_from", 0) + fitting
        return f"todos{before},{last.offset},{last.line}:{entry['path']}" if last else ""


def scan_page(
    workspace: str | Path,
    path: str = ".",
    cursor: str | None = None,
    limit: int = MAX_ENTRIES,
    *,
    recursive: bool = False,
    only: str | None = None,
    until: str | None = None,
    skip: Sequence[str] = (),
    max_bytes: int = DEFAULT_BYTES,
    refuses: Refuses = refuses_nothing,
) -> str:
    """One page of what a folder of the workspace holds, as JSON text (`LIST_FOLDER` describes it and its input).

    Blocking: it reads every file of the page through, but those that `refuses`; run it in a worker process.

    Raises:
        ValueError: the path, the cursor or another argument cannot be used; one line says why.
    """
    base = components(path)
    root = folder_in(Path(workspace), base)
    place = _place(cursor, base)
    page = _Page(base, min(max(max_bytes, LEAST_BYTES), MOST_BYTES), limit)
    wanted = Walk(
        recursive,
        only,
        place,
        _below(until, base) if until else None,
        _relative(map(components, skip), base),
        _relative(ignored_by_git(os.path.realpath(workspace)), base),
    )
    result: dict[str, Any] = {"path": _shown(base) or "."}
    if not base:
        result["workspace"] = show(os.path.basename(root)) or "/"
    try:
        following = _more_todos(page, root, place, refuses) or _fill(page, root, wanted, refuses)
        if cursor is None and only == "folders" and not recursive:
            result["loose"] = sum(1 for _ in walk(root, Walk(only="files", ignored=wanted.ignored)))
    except OSError as error:
        following, result["unreadable"] = None, error.strerror or why(error)
    if page.skipped:
        result["skipped"] = page.skipped
    result |= {"next": following, "totals": page.totals}
    return f'{_dumps(result)[:-1]},"entries":[{",".join(page.entries)}]}}'


MOST_COUNTED = 10_000
"""Entries after a page that are counted; of more it says so."""


def list_page(
    workspace: str | Path,
    path: str = ".",
    cursor: str | None = None,
    limit: int = MAX_ENTRIES,
    *,
    recursive: bool = False,
    only: str | None = None,
    until: str | None = None,
    skip: Sequence[str] = (),
    max_bytes: int = DEFAULT_BYTES,
    details: bool = False,
    refuses: Refuses = refuses_nothing,
) -> str:
    """A folder of the workspace as `list_folder` gives it: a line an entry, without reading a file; with `details`,
    `scan_page`.

    Raises:
        ValueError: the path, the cursor or another argument cannot be used; one line says why.
    """
    if details:
        return scan_page(
            workspace, path, cursor, limit, recursive=recursive, only=only, until=until, skip=skip,
            max_bytes=max_bytes, refuses=refuses,
        )  # fmt: skip
    base = components(path)
    root = folder_in(Path(workspace), base)
    ignored = _relative(ignored_by_git(os.path.realpath(workspace)), base)
    last = _below(until, base) if until else None
    wanted = Walk(
        recursive, only, _place(cursor, base), last, _relative(map(components, skip), base), ignored
    )
    lines: list[str] = []
    skipped: list[str] = []
    room, more = min(max(max_bytes, LEAST_BYTES), MOST_BYTES), 0
    reached = wanted.start.names
    try:
        for found in walk(root, wanted):
            if found.kind == "skipped":
                if not more:
                    skipped.append(_shown(found.names))
                continue
            line = "" if more else _line(found, root, wanted)
            room -= len(line.encode()) + 1
            if more or (lines and (room < 0 or len(lines) >= limit)):
                more += 1
                if more > MOST_COUNTED:
                    break
                continue
            lines.append(line)
            reached = found.names
    except OSError as error:
        lines.append(f"[cannot be listed: {error.strerror or why(error)}]")
    if skipped:
        lines.append(f"[skipped: {', '.join(skipped)}]")
    if more:
        count = f"{more:,}" if more <= MOST_COUNTED else f"more than {MOST_COUNTED:,}"
        lines.append(f"[and {count} more; cursor: after:{_shown((*base, *reached))}]")
    head = [f"{_shown(base)}/ holds:"] if base else []
    return "\n".join([*head, *(lines or ["[nothing]"])])


def _line(found: Found, root: bytes, wanted: Walk) -> str:
    """An entry: its path from the folder that is listed, its size, and what is odd about it."""
    name, notes = _shown(found.names), []
    unreadable = found.unreadable
    if found.kind == "dir":
        name += "/"
        if not wanted.recursive:
            below = count_below(os.path.join(root, *found.names), wanted.below(found.names))
            notes.append(
                f"{below['files']:,} {'file' if below['files'] == 1 else 'files'}, {_size(below['bytes'])}"
            )
            unreadable = unreadable or below.get("unreadable")
    elif found.kind == "file":
        notes.append(_size(found.size))
    else:
        notes.append(f"({found.kind})")
    if unreadable:
        notes.append(f"({unreadable})")
    return "  ".join([name, *notes])


def _size(count: int) -> str:
    """Bytes in three digits or so: `812`, `1.2K`, `34K`, `5.6M`."""
    size, units = float(count), iter("KMGTPE")
    unit = ""
    while size >= 999.5:
        size, unit = size / 1024, next(units)
    return f"{size:.1f}{unit}" if unit and size < 9.95 else f"{size:.0f}{unit}"


def _fill(page: _Page, root: bytes, wanted: Walk, refuses: Refuses) -> str | None:
    """Add entries until the page is full; return the cursor of the next page, or None at the end."""
    reached, read = wanted.start.names, 0
    for found in walk(root, wanted):
        full, location = (*page.base, *found.names), os.path.join(root, *found.names)
        if found.kind == "skipped":
            page.skipped.append(_shown(full))
            reached = found.names
            continue
        after = f"after:{_shown((*page.base, *reached))}"
        if read >= READ_BYTES:
            return after
        entry: dict[str, Any] = {"path": _shown(full), "kind": found.kind}
        examined = None
        if found.kind == "file":
            examined = examine(
                location, size=found.size, mode=found.mode, max_todos=MAX_TODOS, refuses=refuses
            )
            read += 0 if examined.binary else examined.size
            entry |= _described(full, examined)
        elif found.kind == "dir" and not wanted.recursive:
            entry |= count_below(location, wanted.below(found.names))
        if found.unreadable:
            entry["unreadable"] = found.unreadable
        cut = page.add(entry, *((examined.todos, examined.more_todos) if examined else ()))
        if cut is None:
            return after
        page.totals[_TOTALS.get(found.kind, "other")] += 1
        page.totals["bytes"] += entry.get("bytes", 0) if examined else 0
        page.totals["lines"] += entry.get("lines") or 0
        reached = found.names
        if cut:
            return cut
    return None


def _described(names: Names, examined: FileFigures) -> dict[str, Any]:
    """The fields of a file's entry; those that would say nothing are left out."""
    optional = {
        "binary": examined.binary,
        "entry_point": examined.entry_point,
        "test": is_test(names),
        "unreadable": examined.unreadable,
    }
    always = {"bytes": examined.size, "lines": examined.lines, "language": examined.language}
    return always | {name: value for name, value in optional.items() if value}


def _more_todos(page: _Page, root: bytes, place: _Place, refuses: Refuses) -> str | None:
    """Go on with one file's TODOs; the cursor for still more of them, or None when all are listed."""
    if place.todos is None:
        return None
    before, offset, line = place.todos
    location = os.path.join(root, *place.names)
    todos, more = later_todos(location, offset=offset, line=line, count=MAX_TODOS, refuses=refuses)
    entry = {"path": _shown((*page.base, *place.names)), "kind": "file", "todos_from": before}
    return page.add(entry, todos, more) or None if todos else None


def _place(cursor: str | None, base: Names) -> _Place:
    match = _CURSOR.fullmatch(cursor or "")
    if cursor is None:
        return _Place()
    if match is None:
        raise ValueError(
            f"cursor={cursor[:80]!r} is none of list_folder's; pass the last page's `next` unchanged."
        )
    todos = (int(match[2]), int(match[3]), int(match[4])) if match[2] else None
    return _Place(_below(match[5], base), match[1] == "from", todos)


def _below(path: str, base: Names) -> Names:
    """The names of a workspace path from `base` on."""
    names = components(path)
    if names[: len(base)] != base or len(names) == len(base):
        raise ValueError(f"{path[:80]!r} does not lie below the folder that is listed.")
    return names[len(base) :]


def _shown(names: Names) -> str:
    return show(b"/".join(names))


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# How `list_folder` is described to a model.

LIST_FOLDER = ToolSpec(
    name="list_folder",
    description=(
        "List a folder of the workspace: a line an entry, with its bytes; folders end in / and come with the files"
        " and bytes below them, or, with `recursive`, followed by everything below them. What does not fit is"
        " counted in the last line, which gives the `cursor` of the rest. `details` gives JSON pages instead: of"
        " files exact bytes, lines, language and, where they hold, binary, test, entry_point, unreadable and todos"
        " ([line, TODO|FIXME, text]); `next` is the cursor. Links are listed, never followed; .git, .hg, .svn and"
        " virtual environments are skipped, and what git ignores is not listed. Unusual characters in names are"
        " escaped with a backslash; use the names as given."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "path": {
                "type": "string",
                "description": "A folder of the workspace; '.' is the workspace itself.",
            },
            "cursor": {
                "type": ["string", "null"],
                "description": "Of the last page, or 'from:PATH'.",
            },
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES},
            "recursive": {"type": "boolean", "default": False},
            "details": {"type": "boolean", "default": False},
            "only": {
                "enum": ["files", "folders", None],
                "description": "Of the direct children, the folders alone, or all but them.",
            },
            "until": {"type": ["string", "null"], "description": "The last path to list, with all below it."},
            "skip": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Paths to leave out, with all below them.",
            },
            "max_bytes": {
                "type": "integer",
                "minimum": LEAST_BYTES,
                "maximum": MOST_BYTES,
                "description": f"Size of a page; {DEFAULT_BYTES} by default.",
            },
        },
        "additionalProperties": False,
    },
)
