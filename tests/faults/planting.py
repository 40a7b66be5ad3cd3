"""Keys to plant, each in the text in which it comes, and where any of them is found again."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import closing
from pathlib import Path

from watchkeeper.store.driver import sqlite3

PASSWORD = 'pass"wörd\\with 7 odd, signs'
BASIC = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
CONFIGURED = "only in the configuration, 9!"
KEYS = {
    "variable": PASSWORD,
    "configured": CONFIGURED,
    "base64": BASIC[8:-4],
    "openai": "sk-proj-" + "aB-_9" * 12,
    "slack": "xoxb-" + "1234567890-" * 2 + "aBcDeFgH",
    "google": "AIza" + "a1B2c" * 7,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF123_-abc",
    "anthropic": "sk-ant-api03-" + "Xy9_" * 12,
    "github": "ghp_" + "q7W2" * 9,
    "aws": "AKIA" + "Q4X7" * 4,
    "pem": "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqh7\n" * 3 + "-----END PRIVATE KEY-----",
}
URL_PASSWORD = "hunter2-in-a-url"
KEYS["url"] = URL_PASSWORD


def whole(name: str) -> str:
    """The text in which a key comes."""
    return {"base64": BASIC, "url": f"postgres://app:{URL_PASSWORD}@db/x"}.get(name, KEYS[name])


ALL = " and ".join(whole(name) for name in KEYS)


def telling(key: str) -> list[bytes]:
    """What must not be found of a key: of one with lines, each line by itself."""
    lines = [line for line in key.splitlines() if "-----" not in line]
    forms = {
        form
        for line in lines
        for form in (line, json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1])
    }
    return [form.encode() for form in forms]


def planted(folder: Path, keys: dict[str, str] = KEYS) -> list[str]:
    """Where under `folder` a planted key is, workspaces left out: `file: key`."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file() or "workspace" in path.parts or "config" in path.parts:
            continue
        parts = [path.read_bytes()]
        if path.suffix == ".db":
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                rows = connection.execute("SELECT data FROM artifacts WHERE encoding = 'zlib'").fetchall()
            parts += [zlib.decompress(row[0]) for row in rows]
        found += [
            f"{path.name}: {name}"
            for name, key in keys.items()
            if any(form in part for part in parts for form in telling(key))
        ]
    return found


def where(path: Path) -> list[str]:
    """In which table and column a planted key stands: for the message of a test that fails."""
    found = []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            try:
                cursor = connection.execute(f'SELECT * FROM "{table}"')
            except sqlite3.DatabaseError:
                continue
            names = [column[0] for column in cursor.description]
            for row in cursor:
                for name, value in zip(names, row, strict=True):
                    data = (
                        value.encode()
                        if isinstance(value, str)
                        else value
                        if isinstance(value, bytes)
                        else b""
                    )
                    found += [
                        f"{table}.{name}: {key}"
                        for key, text in KEYS.items()
                        if any(form in data for form in telling(text))
                    ]
    return sorted(set(found))
