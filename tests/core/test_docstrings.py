"""What docstrings and comments of the code name exists, and their sentences begin with what they are about.

A dotted name in backticks is one of these:

- a name of the package: the last parts of a module's path, a class, and what is defined in it;
- an attribute of an object: a name of the same file, and an attribute that the package has somewhere;
- a name of another library, or a class that is imported from one;
- a column of a table;
- a text of the code, as kinds of events, fault points, keys and commands are;
- a file: a source file of the package, or any file of data.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.guide import DOCS

from watchkeeper.store.schema import BY_NAME

ROOT = DOCS.parent
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?`")
LEAVES = {ast.Name, ast.Constant}
PLAIN = {int, str, type(None), ast.Load, ast.Store}
DATA_FILE = re.compile(r".*\.(?:cfg|db|html|js|json|md|sh|toml)")


@dataclass
class Class:
    names: set[str] = field(default_factory=set)
    bases: set[str] = field(default_factory=set)


@dataclass
class Source:
    path: Path
    top: set[str] = field(default_factory=set)
    """Names that the module has."""
    names: set[str] = field(default_factory=set)
    """Variables, parameters and attributes anywhere in the file."""
    texts: list[tuple[int, str]] = field(default_factory=list)
    """Docstrings and comments, each with its line."""


@dataclass
class Names:
    """The names of a package."""

    modules: dict[str, list[Source]] = field(default_factory=dict)
    """By the last parts of the path, as few or as many as a text may give."""
    sources: list[Source] = field(default_factory=list)
    classes: dict[str, Class] = field(default_factory=dict)
    """All classes of one name together."""
    attributes: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=lambda: set(sys.stdlib_module_names))
    """Other packages, and what is imported from them."""
    columns: set[str] = field(default_factory=set)

    def read(self, path: Path, module: tuple[str, ...], text: str) -> None:
        source = Source(path)
        self.sources.append(source)
        for start in range(len(module)):
            self.modules.setdefault(".".join(module[start:]), []).append(source)
        for number, line in enumerate(text.splitlines(), 1):
            _, sharp, comment = line.partition("# ")
            if sharp and comment:
                source.texts.append((number, comment))
        tree = ast.parse(text)
        source.top = set(bound(tree.body))
        for node in nodes(tree):
            kind = type(node)
            if kind is ast.Name:
                if type(node.ctx) is ast.Store:
                    source.names.add(node.id)
            elif kind is ast.Attribute:
                source.names.add(node.attr)
                self.attributes.add(node.attr)
            elif kind is ast.Constant:
                if type(node.value) is str:
                    self.strings.add(node.value)
            elif kind is ast.arg:
                source.names.add(node.arg)
            elif kind is ast.Expr:
                if type(node.value) is ast.Constant:
                    source.texts.append((node.lineno, str(node.value.value)))
            elif kind is ast.ClassDef:
                self.read_class(node)
            elif kind is ast.Import:
                self.libraries |= {one.name.partition(".")[0] for one in node.names}
            elif kind is ast.ImportFrom and not node.module.startswith("watchkeeper"):
                self.libraries |= {node.module.partition(".")[0], *(one.name for one in node.names)}
        self.libraries -= {"watchkeeper", "watchkeeper_tui"}

    def read_class(self, node: ast.ClassDef) -> None:
        found = self.classes.setdefault(node.name, Class())
        found.bases |= {part for base in node.bases for part in ast.unparse(base).split(".")}
        found.names |= set(bound(node.body))
        for one in nodes(node):
            if type(one) is ast.Attribute and type(one.ctx) is ast.Store:
                found.names.add(one.attr)
        self.attributes |= found.names

    def has(self, name: str, source: Source) -> bool:
        """Whether a text of the file may name this."""
        first, *rest = name.split(".")
        last = rest[-1]
        if last == "py":
            return first in self.modules
        if name in self.columns or name in self.strings or DATA_FILE.fullmatch(name):
            return True
        parts = name.split(".")
        inside = [
            (modules, parts[length:])
            for length in range(len(parts), 0, -1)
            if (modules := self.modules.get(".".join(parts[:length])))
        ]
        if any(self.in_module(module, after) for modules, after in inside for module in modules):
            return True
        if first in self.classes:
            return self.in_class(first, rest[0])
        if inside and first not in source.names:
            return False
        return first in self.libraries or (first in source.names and self.attributes.issuperset(rest))

    def in_module(self, source: Source, after: list[str]) -> bool:
        if not after:
            return True
        return after[0] in source.top and (
            len(after) == 1 or (after[0] in self.classes and self.in_class(after[0], after[1]))
        )

    def in_class(self, name: str, attribute: str) -> bool:
        found = self.classes.get(name)
        return found is not None and (
            attribute in found.names or any(self.in_class(base, attribute) for base in found.bases - {name})
        )

    def wrong(self) -> Iterator[str]:
        """The names that do not exist, each with its place."""
        for source in self.sources:
            for number, text in source.texts:
                for match in DOTTED.finditer(text):
                    if not self.has(match[1], source):
                        line = number + text.count("\n", 0, match.start())
                        yield f"{source.path.relative_to(ROOT)}:{line} {match[1]}"


def nodes(tree: ast.AST) -> Iterator[Any]:
    """Every node below this one that is no operator or context; faster than `ast.walk`."""
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if type(node) in LEAVES:
            continue
        for value in vars(node).values():
            if type(value) is list:
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif type(value) not in PLAIN and isinstance(value, ast.AST):
                waiting.append(value)


def bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that these statements give to a module or class."""
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Import() | ast.ImportFrom():
                yield from (one.asname or one.name for one in node.names)
            case ast.Assign() | ast.AnnAssign():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
            case ast.If() | ast.Try() | ast.With():
                yield from bound([*node.body, *getattr(node, "orelse", [])])


@pytest.fixture(scope="module")
def names() -> Names:
    found = Names(columns={f"{table.name}.{column}" for table in BY_NAME.values() for column in table.types})
    for root in (ROOT / "core", ROOT / "tui"):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found.read(path, parts[:-1] if parts[-1] == "__init__" else parts, path.read_text("utf-8"))
    return found


def test_every_dotted_name_in_docstrings_and_comments_exists(names: Names) -> None:
    assert sum(len(DOTTED.findall(text)) for source in names.sources for _, text in source.texts) > 100
    assert list(names.wrong()) == []


@pytest.mark.parametrize(
    "name",
    [
        "driver.facts_found",
        "store.driver.Conn",
        "AgentLoop.walk",
        "store.absent",
        "absent.py",
        "sessions.absent",
    ],
)
def test_a_dotted_name_that_does_not_exist_is_found(names: Names, name: str) -> None:
    assert not names.has(name, names.modules["store.writer"][0])


def test_no_docstring_or_comment_begins_with_of(names: Names) -> None:
    """A sentence that begins so hides what it is about."""
    begun = [
        f"{source.path.relative_to(ROOT)}:{number}"
        for source in names.sources
        for number, text in source.texts
        if text.lstrip().startswith("Of ")
    ]
    assert begun == []
