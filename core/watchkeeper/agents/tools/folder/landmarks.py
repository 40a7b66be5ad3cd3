"""Which files start something, and which are tests: fixed rules, so that everybody counts the same ones."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Iterable

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
