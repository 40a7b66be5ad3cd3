"""Code, differences and plain text as lines of pieces, and the breaking of lines into rows.

Every line that this package makes passes `harmless`. The lexers are Pygments', of a fixed list of languages:
the name of a language comes from hostile text too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from rich.cells import get_character_cell_size

from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.widgets.rows import Line, Piece, slice_pieces

MOST_HIGHLIGHTED = 100_000
"""Characters of a text that is highlighted at once; a longer one is plain. Chunks are far shorter."""

_NAMES = """
bash: sh shell zsh ksh console shellsession .sh .bash .zsh
c: .c .h
clojure: clj .clj .cljs .edn
cmake: .cmake
cpp: c++ cc hpp .cc .cpp .cxx .hpp
csharp: c# cs .cs
css: .css .tcss
dart: .dart
diff: patch udiff .diff .patch
docker: dockerfile
elixir: ex exs .ex .exs
erlang: erl .erl
go: golang .go
graphql: gql .graphql
groovy: gradle .groovy .gradle
haskell: hs .hs
html: xhtml vue svelte .html .htm .vue .svelte
ini: cfg conf .ini .cfg .conf
java: .java
javascript: js jsx mjs node .js .mjs .cjs .jsx
json: json5 jsonc jsonl .json .jsonl .ipynb
julia: jl .jl
kotlin: kt .kt .kts
lua: .lua
make: makefile .mk
nix: .nix
ocaml: ml .ml .mli
perl: pl .pl .pm
php: .php
powershell: ps1 .ps1
protobuf: proto .proto
python: py py3 python3 pyi .py .pyi
r: .r
ruby: rb .rb
rust: rs .rs
scala: .scala .sc
scss: .scss
sql: sqlite postgres postgresql mysql .sql
swift: .swift
terraform: tf hcl .tf
toml: .toml
typescript: ts tsx .ts .tsx
xml: svg xsl .xml .svg
yaml: yml .yml .yaml
zig: .zig
"""
_LANGUAGES = {
    name: language
    for language, _, names in (line.partition(":") for line in _NAMES.split("\n") if line)
    for name in (language, *names.split())
}
_SHELLS = frozenset({"bash", "powershell"})
_ROLES = (
    ("Token.Comment", "muted"), ("Token.Keyword", "accent"), ("Token.Literal.String", "kind_messages"),
    ("Token.Literal.Number", "tokens"), ("Token.Name.Builtin", "tool"), ("Token.Name.Tag", "tool"),
    ("Token.Name.Function", "tool"), ("Token.Name.Class", "tool"), ("Token.Name.Decorator", "kind_facts"),
    ("Token.Name.Variable", "kind_facts"), ("Token.Name.Attribute", "kind_facts"),
)  # fmt: skip
_DIFF_ROLES = {"+": "done", "-": "failed", "@": "accent", "\\": "muted"}
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_HEADS = (
    "--- ",
    "+++ ",
    "diff ",
    "index ",
    "*** ",
    "new file",
    "deleted file",
    "similarity",
    "rename ",
    "Binary ",
)


def language_named(name: str) -> str:
    """The language that a fence, a file extension (`.py`) or a program calls `name`; empty: none that is
    highlighted."""
    return _LANGUAGES.get(name.strip().lower(), "")


def language_of(path: str) -> str:
    """The language of a file by its name; empty: none that is highlighted."""
    file = PurePosixPath(path.replace("\\", "/"))
    return language_named(file.suffix) or language_named(file.name) if file.name else ""


def harmless(line: Iterable[Piece]) -> Line:
    """The line, if nothing in it acts on a terminal or hides; else its text made so, in its first role."""
    pieces = tuple(line)
    text = pieces[0][0] if len(pieces) == 1 else "".join([piece for piece, _ in pieces])
    clean = sanitize(text)
    return pieces if clean == text else ((clean, pieces[0][1]),)


def plain_lines(text: str, role: str = "text") -> Iterator[Line]:
    """The lines of a text that holds no line break but `\\n`, in one role."""
    return (harmless(((line.expandtabs(4), role),)) for line in text.split("\n"))


def code_lines(text: str, language: str) -> Iterator[Line]:
    """The lines of a text, highlighted as `language` (see `language_named`). What is shown is the text: where
    a lexer yields another one, the lines are plain."""
    text = text.expandtabs(4) if "\t" in text else text
    if language == "diff":
        yield from diff_lines(text)
        return
    if not language or len(text) > MOST_HIGHLIGHTED:
        yield from plain_lines(text)
        return
    tokens = list(_lexer(language).get_tokens(text))
    if "".join([value for _, value in tokens]) != text:
        yield from plain_lines(text)
        return
    is_shell = language in _SHELLS
    line: list[Piece] = []
    for kind, value in tokens:
        role = _role_of(kind, is_shell)
        for place, part in enumerate(value.split("\n")):
            if place:
                yield harmless(line)
                line = []
            if part and line and line[-1][1] == role:
                line[-1] = (line[-1][0] + part, role)
            elif part:
                line.append((part, role))
    yield harmless(line)


def diff_lines(text: str, *, is_inside: bool = False) -> Iterator[Line]:
    """The lines of a difference as `diff -u`, `git` or `apply_patch` write it. The sign in the first column
    says what a line is, beside its colour. `is_inside`: the text begins inside a hunk."""
    for line, role in _diff_roles(text, is_inside):
        yield harmless(((line.expandtabs(4), role),))


def _diff_roles(text: str, is_inside: bool) -> Iterator[Piece]:
    old = new = 1 << 60 if is_inside else 0
    for line in text.split("\n"):
        found = _HUNK.match(line)
        role = _DIFF_ROLES.get(line[:1], "text")
        if found is not None:
            old, new = int(found[1] or 1), int(found[2] or 1)
        elif (old > 0 or new > 0) and line[:1] in ("-", "+", " ", "\\", ""):
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        else:
            old = new = 0
            role = "strong" if line.startswith(_HEADS) else role
        yield line, role


def changed_lines(text: str) -> tuple[int, int]:
    """How many lines a difference adds and removes, as `diff_lines` marks them."""
    roles = [role for _, role in _diff_roles(text, False)]
    return roles.count("done"), roles.count("failed")


def wrap_line(line: Sequence[Piece], width: int) -> Iterator[Line]:
    """The line as rows of at most `width` columns. No character is dropped."""
    text = line[0][0] if len(line) == 1 else "".join([piece for piece, _ in line])
    if len(text) <= width and text.isascii():
        yield tuple(line)
        return
    begin = 0
    for end in row_ends(text, width):
        yield slice_pieces(line, begin, end)
        begin = end


def row_ends(text: str, width: int) -> Iterator[int]:
    """Where the rows of a line end: after a space where there is one in the second half of a row. No
    character is dropped."""
    begin, length = 0, len(text)
    if text.isascii():
        while length - begin > width:
            space = text.rfind(" ", begin + width // 2, begin + width)
            begin = space + 1 if space >= 0 else begin + width
            yield begin
        yield length
        return
    used, space = 0, -1
    for at, character in enumerate(text):
        size = get_character_cell_size(character)
        if used + size > width and at > begin:
            end = space + 1 if space >= begin + width // 2 else at
            yield end
            used = sum(get_character_cell_size(each) for each in text[end:at])
            begin = end
        used += size
        if character == " ":
            space = at
    yield length


@lru_cache(16)
def _lexer(language: str) -> Any:
    from pygments.lexers import get_lexer_by_name

    return get_lexer_by_name(language, stripnl=False, stripall=False, ensurenl=False)


@lru_cache(512)
def _role_of(kind: object, is_shell: bool) -> str:
    """The role of one of Pygments' kinds of token."""
    name = str(kind)
    # What joins commands decides what a shell runs.
    if is_shell and name.startswith(("Token.Operator", "Token.Punctuation")):
        return "waiting"
    return next((role for prefix, role in _ROLES if name.startswith(prefix)), "text")
