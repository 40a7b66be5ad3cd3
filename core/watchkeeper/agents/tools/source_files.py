"""Which language a file is in: by its whole name, then its extension, then its `#!` line. A table, no
guessing.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO

from watchkeeper.agents.tools.sandbox import Refuses, refuses_nothing

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
    unknown."""
    if found := _BY_NAME.get(name):
        return found
    stem, dot, extension = name.rpartition(".")
    if dot and stem and (found := _BY_EXTENSION.get(extension.lower())):
        return found
    if found := _BY_INTERPRETER.get(interpreter(first_line)):
        return found
    return OTHER


def interpreter(first_line: bytes) -> str:
    """The program that a `#!` line names, without folder, `env` and version (`python3.12` is `python`); or
    empty."""
    if not first_line.startswith(b"#!"):
        return ""
    words = first_line[2:200].decode("utf-8", "replace").split()
    while words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    name = words[0].rpartition("/")[2] if words else ""
    bare = name.rstrip("0123456789.")
    return name if name in _BY_INTERPRETER else bare


# --- Which files start something, and which are tests: fixed rules, so that everybody counts the same ones ---

MANIFEST_BYTES = 1 << 20
"""A larger manifest is not parsed."""

MANIFESTS = frozenset({"pyproject.toml", "package.json", "entry_points.txt"})
"""Files whose content is parsed for the commands that they declare."""

MAIN_GUARD = re.compile(rb"""^if[ \t]+__name__[ \t]*==[ \t]*(?:"__main__"|'__main__')""", re.MULTILINE)

TEST_FOLDERS = frozenset({b"test", b"tests", b"__tests__", b"spec", b"specs"})
_TEST_NAMES = re.compile(
    rb"test_.*\.py|.*_test\.(?:py|go|cc|cpp|rb|exs|dart)|.*_spec\.rb|.*\.(?:test|spec)\.[cm]?[jt]sx?|.*Tests?\.(?:java|kt|cs|swift)"
)


def is_test(names: tuple[bytes, ...]) -> bool:
    """By its name (`test_*.py`, `*_test.go`, `*.spec.ts`, …) or for lying under a folder named `tests` or the
    like."""
    return not TEST_FOLDERS.isdisjoint(names[:-1]) or _TEST_NAMES.fullmatch(names[-1]) is not None


def entry_point(
    name: str, *, shebang: bytes, executable: bool, main_guard: bool, manifest: bytes
) -> str | None:
    """Why a text file is a place where something starts, or None. The first rule that holds gives the reason.

    Args:
        shebang: the file's first line if it begins with `#!`, else empty.
        executable: its mode has an execute bit.
        main_guard: a Python file with a line that begins `if __name__ == "__main__"`.
        manifest: the whole content, for a file in `MANIFESTS`.
    """
    if name == "__main__.py":
        return "python -m"
    if name in MANIFESTS and (reason := _declared(name, manifest)):
        return reason
    if main_guard:
        return 'if __name__ == "__main__"'
    if name in ("main.go", "main.rs", "main.c", "main.cpp"):
        return "main program"
    if shebang and executable:
        return "executable script"
    return None


def _declared(name: str, content: bytes) -> str | None:
    """The commands that a manifest declares; None when there are none or it cannot be parsed."""
    try:
        text = content.decode("utf-8")
        if name == "pyproject.toml":
            document = tomllib.loads(text)
            scripts = _table(document, "project", "scripts") or _table(document, "tool", "poetry", "scripts")
            return _listed("project.scripts", scripts)
        if name == "package.json":
            document = json.loads(text)
            if not isinstance(document, dict):
                return None
            commands = document.get("bin")
            if isinstance(commands, dict):
                return _listed("bin", commands)
            if isinstance(commands, str):
                return _listed("bin", [commands])
            main = document.get("main")
            return _listed("main", [main]) if isinstance(main, str) else None
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # command names keep their case
        parser.read_string(text)
        names = parser.options("console_scripts") if parser.has_section("console_scripts") else []
        return _listed("console_scripts", names)
    except (ValueError, RecursionError, configparser.Error):
        return None


def _table(document: object, *keys: str) -> dict[str, object]:
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _listed(label: str, names: Iterable[object]) -> str | None:
    words = sorted(str(name) for name in names)
    if not words:
        return None
    text = f"{label}: {', '.join(words)}"
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= 80 else text[:79] + "…"


# --- Finds TODO and FIXME in a stream of bytes of any size: whole words, upper case, at most one a line (the ---
#
# first).

_WORD = re.compile(rb"\b(TODO|FIXME)\b")
TEXT_CHARACTERS = 120
_TEXT_BYTES = 4 * TEXT_CHARACTERS + 4
HOLD_BACK = _TEXT_BYTES + 16
"""Bytes kept from one chunk for the next, so that no word and no shown text is cut at a chunk's end."""


@dataclass(frozen=True, slots=True)
class Todo:
    """One line that says TODO or FIXME."""

    line: int
    kind: str
    text: str
    """From the word on, printable, at most `TEXT_CHARACTERS`."""
    offset: int
    """Where in the file the word ends: scanning may go on from here, the rest of this line being told
    already."""


class TodoScanner:
    """Feed it a file's bytes in order; it gives the TODOs, each once, however the chunks fall.

    Starting at `offset` on `line` with `told` set, it ignores the rest of that line: that is how a later page
    goes on.
    """

    def __init__(self, offset: int = 0, line: int = 1, *, told: bool = False) -> None:
        self._buffer = b""
        self._offset = offset
        """Of the buffer's first byte."""
        self._from = 0
        """How far into the buffer lines have been counted and words looked for."""
        self._line = line
        self._told = told

    def feed(self, chunk: bytes, *, last: bool = False) -> list[Todo]:
        """The TODOs that are now complete. `last`: there are no more bytes."""
        buffer = self._buffer + chunk
        safe = len(buffer) if last else max(self._from, len(buffer) - HOLD_BACK)
        found = self._scan(buffer, safe)
        # One byte before the place reached stays, so that a word boundary there is still seen.
        keep = max(0, safe - 1)
        self._buffer = buffer[keep:]
        self._offset += keep
        self._from -= keep
        return found

    def _scan(self, buffer: bytes, safe: int) -> list[Todo]:
        found: list[Todo] = []
        position = self._from
        hopeless = buffer.find(b"TODO", position) < 0 and buffer.find(b"FIXME", position) < 0
        while position < safe and not hopeless:
            if self._told:
                newline = buffer.find(b"\n", position, safe)
                if newline < 0:
                    break
                self._told = False
                self._line += 1
                position = newline + 1
            match = _WORD.search(buffer, position)
            if match is None or match.start() >= safe:
                break
            self._line += buffer.count(b"\n", position, match.start())
            found.append(
                Todo(self._line, match[1].decode(), _text(buffer, match.start()), self._offset + match.end())
            )
            self._told = True
            position = match.end()
        newlines = buffer.count(b"\n", position, safe) if position < safe else 0
        self._line += newlines
        if newlines:
            self._told = False
        self._from = max(position, safe)
        return found


def _text(buffer: bytes, start: int) -> str:
    end = buffer.find(b"\n", start, start + _TEXT_BYTES)
    raw = buffer[start : end if end >= 0 else start + _TEXT_BYTES]
    text = raw.decode("utf-8", "replace")
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


# --- What one regular file holds: lines, language, TODOs, whether it starts something. Streamed, never held ---
#
# whole.

SNIFFED_BYTES = 8 * 1024
CHUNK_BYTES = 1 << 20
_GUARD_HOLD_BACK = 200
_GUARD_TAIL = 4_096


@dataclass(frozen=True, slots=True)
class FileFigures:
    """One file, examined."""

    size: int
    language: str
    lines: int | None = None
    """Newline characters, plus one for a last line without; None for a binary or unreadable file."""
    todos: tuple[Todo, ...] = ()
    """The first ones, in order."""
    more_todos: bool = False
    entry_point: str | None = None
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
    scanner = TodoScanner(offset, line, told=True)
    found: list[Todo] = []
    try:
        with _opened(path, refuses) as file:
            file.seek(offset)
            for chunk, last in _chunks(file, b""):
                found += scanner.feed(chunk, last=last)
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


def _chunks(file: FileIO, head: bytes) -> Iterator[tuple[bytes, bool]]:
    """The file's bytes from `head` (already read) on, each with whether it is the last."""
    chunk = head
    while True:
        following = file.read(CHUNK_BYTES)
        if chunk or not following:
            yield chunk, not following
        if not following:
            return
        chunk = following


def _examined(file: FileIO, name: str, size: int, mode: int, max_todos: int) -> FileFigures:
    head = file.read(SNIFFED_BYTES)
    if b"\0" in head:
        return FileFigures(size, BINARY)
    first_line = head.partition(b"\n")[0] if head.startswith(b"#!") else b""
    language = language_of(name, first_line)
    scanner = TodoScanner()
    todos: list[Todo] = []
    lines = 0
    ends_open = False
    guarded = False
    guard_tail = b"\n"
    manifest = bytearray() if name in MANIFESTS and size <= MANIFEST_BYTES else None
    for chunk, last in _chunks(file, head):
        lines += chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n") if chunk else ends_open
        if len(todos) <= max_todos:
            todos += scanner.feed(chunk, last=last)
        if language == "Python" and not guarded:
            window = guard_tail + chunk
            guarded = b"__main__" in window and MAIN_GUARD.search(window) is not None
            # From a line's beginning, so that the pattern's `^` does not hold in the middle of one.
            guard_tail = window[max(window.rfind(b"\n", 0, -_GUARD_HOLD_BACK), 0) :]
            if len(guard_tail) > _GUARD_TAIL:
                guard_tail = b"-" + guard_tail[-_GUARD_TAIL:]
        if manifest is not None and len(manifest) <= MANIFEST_BYTES:
            manifest += chunk
    return FileFigures(
        size=size,
        language=language,
        lines=lines + ends_open,
        todos=tuple(todos[:max_todos]),
        more_todos=len(todos) > max_todos,
        entry_point=entry_point(
            name,
            shebang=first_line,
            executable=bool(mode & 0o111),
            main_guard=guarded,
            manifest=bytes(manifest or b""),
        ),
    )
