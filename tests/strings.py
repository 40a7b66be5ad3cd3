"""Every sentence that the program can show to a person, in one file for review: `tests/strings.txt`.

    python -m tests.strings            # what the code holds now
    python -m tests.strings --sample N [--seed S]

A string counts if it has three words or more and reads as text. Docstrings, SQL, patterns, style sheets and scripts do not
count. `{…}` is a value, `\\n` a new line. A string is listed once, below the first module that holds it.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LISTED = ROOT / "tests" / "strings.txt"
LEAST_WORDS = 3
COLUMNS = re.compile(r"[\w.*(){…}]+(, [\w.*(){…}]+(, \d+\))?)+,?")
SQL = re.compile(
    r"\s*\(?(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|WITH|PRAGMA|DROP|FROM|WHERE|AND|OR|ORDER|JOIN|LEFT|UNION|VALUES|GROUP|SET"
    r"|ON|CASE|COALESCE|LIMIT|HAVING|TRIM|EXISTS|NOT|ATTACH|DETACH|BEGIN|ANALYZE|LOCK|COPY|GRANT)\b|.*\b(ORDER BY|IS NULL|NOT NULL|FROM \w+ WHERE)\b"
)
CODE = re.compile(
    r"\\[sbdwnB(]|\(\?|\bfunction\b.*[{(]|[a-z-]+: ?[^;{]*;|^\s*<[a-z!/]|&&|=>|==|\bimport sys\b"
)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
READS = re.compile(r"[a-z,.:;)…}] [a-z({…]")


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values)


def is_text(string: str) -> bool:
    """Whether a string is a sentence or a label for a person, not code or data."""
    words = re.findall(r"[A-Za-z][a-z'-]+", string)
    if len(words) < LEAST_WORDS or not READS.search(string):
        return False
    is_code = (
        SQL.match(string) or CODE.search(string) or ("_" in string and COLUMNS.fullmatch(string.strip()))
    )
    return not is_code


def strings_of(source: str) -> Iterator[str]:
    """The sentences of a module, in its order."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                skipped.add(id(child.value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node) if isinstance(part, ast.Constant)}
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped)
    ]
    for node in sorted(found, key=lambda one: (one.lineno, one.col_offset)):
        text = text_of(node)
        if is_text(text):
            yield CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def listed() -> str:
    """The whole list: a heading for each module, then a line for each of its strings."""
    seen: set[str] = set()
    parts = []
    modules = sorted(path for top in ("core", "tui") for path in (ROOT / top).rglob("*.py"))
    for path in modules:
        new = [text for text in strings_of(path.read_text(encoding="utf-8")) if text not in seen]
        new = list(dict.fromkeys(new))
        seen |= set(new)
        if new:
            parts.append("\n".join((f"## {path.relative_to(ROOT).as_posix()}", *new)))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="List the sentences that the program can show.")
    parser.add_argument("--sample", type=int, help="this many of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    text = listed()
    if options.sample is None:
        print(text, end="")
        return
    lines = [line for line in text.splitlines() if line and not line.startswith("## ")]
    drawn = random.Random(options.seed).sample(lines, min(options.sample, len(lines)))
    print("\n".join(drawn))


if __name__ == "__main__":
    main()
