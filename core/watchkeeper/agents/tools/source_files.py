"""What one file of source holds: its language, lines, TODOs, and whether it starts something or tests something.

Promises: fixed rules and tables, no guessing, so that every count agrees; a file is read once, in pieces, and
never held whole.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import chain
from typing import Any

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
        """Of the buffer's first byte."""
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
