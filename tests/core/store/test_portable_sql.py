"""Every SQL statement of core means the same to SQLite and to PostgreSQL, but for a few modules that say it for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import watchkeeper

CORE = Path(watchkeeper.__file__).parent
OF_SQLITE = {
    "store/driver.py": "the dialect",
    "store/schema.py": "the tables of SQLite, with their triggers",
    "store/migrations.py": "migrations of files, which only SQLite has",
    "store/database.py": "opening a file, checking its values, and copies of files",
    "store/postgres.py": "what PostgreSQL says instead",
    "store/search/index.py": "full-text search on SQLite",
    "store/search/postgres_index.py": "full-text search on PostgreSQL",
    "store/search/words.py": "a full-text index in memory, which splits texts into words",
    "memory/ranking.py": "a full-text index in memory",
    "transcripts/copilot.py": "the database of another program",
    "transcripts/opencode/__init__.py": "the database of another program",
}
IS_SQL = re.compile(
    r"\b(SELECT|INSERT|DELETE FROM|WHERE|ORDER BY|ON CONFLICT|GROUP BY)\b|\bsubstr\(|\bUPDATE\b.*\bSET\b"
)
NOT_PORTABLE = re.compile(
    r"\browid\b|\bjson_\w+\(|->|\b(INSERT|UPDATE) OR\b|\bREPLACE INTO\b|\bGLOB\b|\bMATCH\b|\bsqlite_master\b"
    r"|\b(ifnull|iif|total|group_concat|instr|typeof|char)\(|\bsubstr\([^,()]*, *-|\b(max|min)\([^()]*,|\bIS (NOT )?\?"
)


def texts(tree: ast.AST, *, whole: bool = False) -> Iterator[str]:
    """Every string of a module that is no docstring, an f-string with its fixed parts only.

    `whole`: only strings that are no part of an expression which joins several.
    """
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    if whole:
        alone |= {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.BinOp)
            for part in (node.left, node.right)
        }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            if whole:
                continue
            parts = (part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | alone:
            yield node.value


def test_no_statement_of_core_has_a_construct_that_only_one_database_knows() -> None:
    found, statements = [], 0
    for path in sorted(CORE.rglob("*.py")):
        name = path.relative_to(CORE).as_posix()
        if name in OF_SQLITE:
            continue
        for text in texts(ast.parse(path.read_text("utf-8"))):
            if IS_SQL.search(text):
                statements += 1
                found += [(name, match[0], text[:90]) for match in NOT_PORTABLE.finditer(text)]
    assert found == []
    assert statements > 400


def test_the_modules_that_may_say_it_their_own_way_are_there() -> None:
    assert [name for name in OF_SQLITE if not (CORE / name).is_file()] == []


def test_no_module_asks_which_database_it_has() -> None:
    of_postgres = re.compile(r"\b(is_postgres|PostgresConnection|PostgresEngine|PostgresIndex)\b")
    naming = [
        path.relative_to(CORE).as_posix()
        for path in sorted(CORE.rglob("*.py"))
        if of_postgres.search(path.read_text("utf-8"))
    ]
    assert naming == ["store/postgres.py", "store/search/postgres_index.py"]
