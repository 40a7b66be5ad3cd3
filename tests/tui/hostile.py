"""Hostile text in every column that can hold any, and a terminal that keeps what it is sent and judges it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from textual.drivers.headless_driver import HeadlessDriver

from watchkeeper.store.driver import Connection

ATTACKS: tuple[bytes, ...] = (
    b"\x1b[2J\x1b[1;1H\x1b[8mhidden\x1b[0m",
    b"\x1b]0;a title\x07\x1b]2;a title\x1b\\",
    b"\x1b]52;c;ZXZpbA==\x07",
    b"\x1b]8;;http://evil.example\x1b\\a link\x1b]8;;\x1b\\",
    b"\x1b]9;a note\x07\x1b]777;notify;a;note\x07\x1b]1337;SetUserVar=a=b\x07",
    b"\x1bP1$r0m\x1b\\\x1b_Ga=T;AAAA\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\",
    b"\x1b[?1049l\x1b[?1000h\x1b[6n\x1b[c\x1b[>q\x1bc\x1b#8\x0e\x0f",
    b"\x9b2J\x9d0;a title\x9c\x90q\x9c\x9fG\x9c\x84\x85\x8d",
    "\u009b2J\u009d52;c;ZXZpbA==\u009c\u0090q\u009c\u0085\u008d".encode(),
    b"a\x00b\x08\x08\x08\x7f\x05\x07\x0b\x0c\r\nover\rwritten",
    b"[red]r[/red] [@click=app.quit]x[/] [link=http://evil.example]l[/link] [/nothing] [$error]v[/] \\[b]",
    b"[bold][/][on red blink reverse]a[/] [@click=app.leave('pause')]click[/] :smile: {now} %s {0}",
    "user\u202egnp.exe\u202c \u2066iso\u2069\u2067late\u2069 \u200e\u200f\u061c".encode(),
    "zero\u200bwidth\u200c\u200d\u2060\ufeff soft\u00adhyphen \u034f\u3164\u115f\uffa0".encode(),
    "\U000e0041\U000e0042\U000e007f tags \ufe0f\ufe0e\U000e0100 \u180e\U0001d173".encode(),
    ("Z" + "\u0301\u0489\u0336" * 40 + "algo \u20dd\u20dd\u20dd\u20dd").encode(),
    "漢字テスト👩\u200d👩\u200d👧🏽🇩🇪 ﷽ ௵ \u2028line\u2029paragraph".encode(),
    b"\xff\xfe\xc3\x28\xed\xa0\x80\xf0\x28\x8c\x28\xf8\x88\x80\x80\x80 broken",
    b"\xed\xa0\xbd\xed\xb8\x80 half\xe2\x82",
    b"x" * 100_000,
    b"word " * 3_000 + b"\n" * 3_000,
    b"",
    b" \t \n ",
    b"../../../etc/passwd\x00.png; rm -rf ~ && $(reboot) `id` | sh #",
    b"-rf --help\n--version",
)
"""What a model, a tool, a file or a user may have written."""

_KEPT = re.compile(
    r"(^|_)id$|^(assigned_agent|depends_on|digest|head_digest|tail_digest|inputs_hash|copied_from|starts_from|status|kind|"
    r"trigger|activity|scope|origin|purpose|price_status|encoding|state|memory_blob_ref|elided|program|key|path|replaces|host_name)$"
)
"""Columns that the program itself fills from a closed list, or as a key."""

_LISTS = frozenset({"tags", "task_queue", "expected_outputs", "artifact_refs", "inputs_ref"})
_OBJECTS = frozenset({"data", "payload", "settings", "composition", "sources", "detail"})


def poison(connection: Connection, attacks: Sequence[bytes]) -> int:
    """Put these texts, in turn, into every text of every row; returns how many were put somewhere."""
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND sql LIKE '%RAISE%'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {name}")  # what is never changed by the program is changed here
    turn, count = cycle(attacks), 0
    tables = [
        row[0]
        for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
        )
    ]
    for table in tables:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[2] == "TEXT"]
        if "_fts" in table or table.startswith("_") or not columns:
            continue
        for (rowid,) in connection.execute(f"SELECT rowid FROM {table}").fetchall():
            for column in columns:
                if _KEPT.search(column) and (table, column) not in _FREE:
                    continue
                value = _shaped(table, column, next(turn))
                connection.execute(
                    f"UPDATE OR IGNORE {table} SET {column} = CAST(? AS TEXT) WHERE rowid = ?", (value, rowid)
                )
                count += 1
    return count


_FREE = frozenset({("artifacts", "path"), ("artifacts", "kind"), ("events", "kind"), ("facts", "kind")})


def _shaped(table: str, column: str, attack: bytes) -> bytes:
    """The text as the column holds it: some hold JSON, which a test may still break."""
    text = attack.decode("utf-8", "surrogateescape")
    if (table, column) == ("messages", "content"):
        value: Any = [
            {"type": "text", "text": text}, {"type": "thinking", "thinking": text},
            {"type": "tool_use", "id": text, "name": text, "input": {text: [text, {text: text}]}},
            {"type": "tool_result", "tool_use_id": text, "content": [{"type": "text", "text": text}],
             "is_error": True}, {"type": text, text: text},
        ]  # fmt: skip
    elif column in _LISTS:
        value = [text, text]
    elif column in _OBJECTS and table != "live":
        value = {
            text or "-": text, "tool": text, "preview": text, "reason": text, "error": text, "title": text,
            "tokens_before": 10,
        }  # fmt: skip
    elif column in ("citations", "observations"):
        return b"[1]"
    elif column == "plan_graph_snapshot":
        value = [{"id": text, "title": text, "depends_on": [text]}]
    else:
        return attack
    return json.dumps(value).encode()


class Recorder(HeadlessDriver):
    """A terminal without a screen that keeps every character sent to it."""

    sent: list[str]

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        if not hasattr(self, "sent"):
            self.sent = []
        self.sent.append(data)


_OURS = re.compile(
    r"\x1b\[[0-9;:]*m"  # looks
    r"|\x1b\[[0-9]+;[0-9]+H"  # the cursor's place
    # what the toolkit switches as it starts and paints
    r"|\x1b\[\?(?:25|2026|2004|1004|1000|1003|1015|1006|1049|7)[hl]"
    r"|\x1b\]22;[a-z]*\x07"  # the pointer's shape
    # what the user copied, which is not what an attack would have copied
    r"|\x1b\]52;c;(?!ZXZpbA==)[A-Za-z0-9+/=]*\x07"
    r"|\x1b\]777;notify;[^;\x00-\x1f\x7f-\x9f]*;[^;\x00-\x1f\x7f-\x9f]*\x07"  # a notification
)
_CONCEALED = re.compile(r"\x1b\[(?:[0-9;:]*;)?8(?:;[0-9;:]*)?m")


def judge(sent: str) -> list[str]:
    """What a terminal was sent that only hostile text can have brought there: a line for each kind."""
    found = []
    left = _OURS.sub("", sent)
    for character in sorted(set(left)):
        category = unicodedata.category(character)
        if (
            category in ("Cc", "Cs", "Cf", "Zl", "Zp") and character not in "\n"
        ) or "\ufe00" <= character <= "\ufe0f":
            place = left.index(character)
            found.append(f"U+{ord(character):04X} ({category}) in {left[max(0, place - 30) : place + 30]!r}")
    if re.search(r"[\u0300-\u036f\u0483-\u0489]{4}", left):
        found.append("a tower of combining marks")
    return found
