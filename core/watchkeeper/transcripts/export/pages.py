"""The readable forms: a session as one HTML page, or as one Markdown document, from the templates beside this.

Whatever a session holds is text in both, and never markup. The templates cannot forget to escape: everything
that they print is escaped, for Markdown as for HTML, unless it is marked as markup here. The transcripts of a
page are data blocks, which the page's own program shows as text. Its Content-Security-Policy allows only
that program and style sheet, by their hashes, and no network.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.records.text import cost_text, duration_text, plural, utc_seconds_text
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.overview import (
    GLYPHS,
    Clean,
    CompactionEntry,
    Piece,
    Row,
    TranscriptMessage,
    compactions,
    overview,
    plan_tree,
    text_lines,
    transcript,
)

if TYPE_CHECKING:
    from jinja2 import Template

SHOWN_BYTES = 200_000
"""Artifacts of text up to this size are shown whole on a page."""
SHOWN_IN_ALL = 4_000_000
LARGEST_KEPT = 20_000_000
"""Characters of summaries on one page; of later compactions it has the numbers alone."""
LARGEST_TRANSCRIPTS = 160_000_000
"""Characters of messages on one page, in equal shares for the agents; the JSON form has the rest."""
RESULT_CHARACTERS = 10_000
"""Characters of a call's input, or of a result, in Markdown."""

_MARKS = re.compile(r"([\\`*_\[\]<>|~&$@#{}])")


def write_markdown(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one Markdown document. The caller holds a read transaction.

    Args:
        redactor: makes one that removes secrets; None leaves them in.

    Returns:
        How many secrets were removed; None if they were left in.
    """
    return _write("session.md", connection, session_id, out, redactor)


def write_page(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one HTML page, like `write_markdown`."""
    return _write("page.html", connection, session_id, out, redactor)


def _write(
    name: str, connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    secrets = redactor() if redactor is not None else None
    clean: Clean = secrets if secrets is not None else lambda value: value
    session = overview(connection, session_id, clean)
    share = LARGEST_TRANSCRIPTS // max(1, len(session["agents"]))
    # Everything that can be long is an iterator, and the template is written as it is rendered.
    out.writelines(
        _template(name).generate(
            session=session,
            secrets=secrets,
            plan=plan_tree(session),
            names={agent["id"]: agent["name"] for agent in session["agents"]},
            places={agent["id"]: place for place, agent in enumerate(session["agents"])},
            most_tokens=max((agent["spent"].total for agent in session["agents"]), default=0),
            compactions=lambda: _bounded(compactions(connection, session_id, clean)),
            artifacts=lambda: _artifacts(connection, session, clean),
            messages=lambda agent: transcript(connection, agent["id"], clean),
            chunks=lambda agent: _chunks(transcript(connection, agent["id"], clean), share),
        )
    )
    return secrets.count if secrets is not None else None


@cache
def _template(name: str) -> Template:
    """A template whose names are checked, and which prints nothing that is not escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def escape_markdown(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escaped(str(value)))

    environment = Environment(
        loader=PackageLoader("watchkeeper.transcripts.export"),
        autoescape=True,
        finalize=escape_markdown if name.endswith(".md") else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("watchkeeper.transcripts.export") / "templates"
    environment.globals |= {
        name: Markup((folder / file).read_text(encoding="utf-8"))
        for name, file in (("style", "page.css"), ("program", "page.js"))
    }
    environment.filters |= {
        "cost": lambda spent: cost_text(spent.cost_usd, spent.total),
        "data": lambda value: Markup(data_block(value)),
        "digest": _digest,
        "duration": duration_text,
        "fenced": lambda text: Markup(fenced(text)),
        "glyph": lambda status: GLYPHS.get(status, "·"),
        "message_pointer": _message_pointer,
        "number": lambda amount: "?" if amount is None else f"{amount:,}",
        "plural": plural,
        "short": _short,
        "shortened": _shortened,
        "state": lambda status: status if status in GLYPHS else "unknown",
        "time": utc_seconds_text,
    }
    return environment.get_template(name)


def escaped(text: str) -> str:
    """Text of one line that Markdown shows as it is: no emphasis, link, picture, table cell or HTML."""
    return _MARKS.sub(r"\\\1", text).replace("://", ":\\//").replace("www.", "www\\.")


def fenced(text: str) -> str:
    """Text of several lines in a code block that none of its lines can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}\n"


def _shortened(piece: Piece) -> str:
    limit = RESULT_CHARACTERS if piece.kind in ("call", "result") else len(piece.text)
    left_out = piece.left_out + max(0, len(piece.text) - limit)
    return piece.text[:limit] + (f"\n[… {left_out:,} characters more]" if left_out else "")


def data_block(value: object) -> str:
    """JSON for a script element: nothing in it ends the element, opens a comment, or ends a line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive messages of an agent as one data block."""

    first: int
    last: int
    data: str
    left_out: int = 0
    """How many messages after it the page does not have."""


_MESSAGES_PER_CHUNK = 50
_CHARACTERS_PER_CHUNK = 300_000


def _chunks(messages: Iterable[TranscriptMessage], share: int) -> Iterator[_Chunk]:
    """The messages in data blocks, up to `share` characters."""
    texts: list[str] = []
    size = written = left_out = first = last = 0
    for message in messages:
        if written > share:
            left_out += 1
            continue
        pieces = [
            (one.kind, one.text, one.left_out, one.name, one.id, int(one.is_error)) for one in message.pieces
        ]
        row = (
            message.seq,
            message.role,
            utc_seconds_text(message.at),
            message.tokens,
            pieces,
            int(message.undone),
        )
        text = data_block(row)
        first, last = first if texts else message.seq, message.seq
        texts.append(text)
        size += len(text)
        written += len(text)
        if len(texts) >= _MESSAGES_PER_CHUNK or size >= _CHARACTERS_PER_CHUNK:
            yield _Chunk(first, last, ",\n".join(texts))
            texts, size = [], 0
    if texts or left_out:
        yield _Chunk(first, last, ",\n".join(texts), left_out)


def _bounded(found: Iterable[CompactionEntry]) -> Iterator[CompactionEntry]:
    """Compactions without their texts once these exceed `LARGEST_KEPT`."""
    size = 0
    for one in found:
        size += sum(len(kept.text) for kept in one.kept)
        if size > LARGEST_KEPT:
            left_out = "[left out: the page would be too large]"
            one = replace(one, kept=tuple(replace(kept, text=left_out) for kept in one.kept))
        yield one


def _artifacts(connection: Connection, session: Row, clean: Clean) -> Iterator[tuple[Row, str | None]]:
    """Each output, with its text if that is small enough to be shown."""
    left = SHOWN_IN_ALL
    for one in session["outputs"]:
        text = None
        if one["size"] <= min(SHOWN_BYTES, left) and one["kind"] == "artifact":
            text = _artifact_text(connection, one["digest"])
        if text is not None:
            left -= one["size"]
            text = text_lines(clean(text), SHOWN_BYTES)
        yield one, text


def _artifact_text(connection: Connection, digest: str) -> str | None:
    sql = "SELECT encoding, data FROM artifacts WHERE digest = ?"
    encoding, data = connection.execute(sql, (digest,)).fetchone()
    try:
        return (zlib.decompress(data) if encoding == "zlib" else bytes(data)).decode()
    except (zlib.error, UnicodeDecodeError):
        return None


def _message_pointer(pointer: str) -> tuple[str, str]:
    """The agent and the messages (`3` or `3-7`) of a `message://` pointer; empty for any other."""
    found = re.fullmatch(r"message://(.+)/([0-9]+(?:-.*)?)", pointer)
    return (found[1], found[2]) if found else ("", "")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _short(amount: int) -> str:
    """`9,999`, `12.3 k`, `4.5 M`."""
    for size, unit, least in ((10**9, "G", 10**9), (10**6, "M", 10**6), (1000, "k", 10_000)):
        if amount >= least:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:,}"
