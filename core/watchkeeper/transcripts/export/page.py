"""The HTML form: one file that needs nothing else. What others wrote is text in it, and can be nothing more.

Two walls stand against what a session may hold. Every text is escaped where it is written, and the
transcripts lie in data blocks that the page's own program puts on the page as text. And a
Content-Security-Policy lets only that program and that style sheet act, by their hashes, with no network at
all: what slipped through could neither run nor load.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from html import escape
from importlib.resources import files
from typing import TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.records.wording import plural
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export import page_parts as parts
from watchkeeper.transcripts.export.overview import AgentLine, Overview, overview
from watchkeeper.transcripts.export.page_compactions import compaction_section
from watchkeeper.transcripts.export.page_plan import plan_section
from watchkeeper.transcripts.export.pieces import Clean
from watchkeeper.transcripts.export.transcript import Said, transcript
from watchkeeper.transcripts.export.words import duration, moment

LARGEST_TRANSCRIPTS = 160_000_000
"""Characters of messages in one page, shared equally by the agents; of what is more, the JSON form has
all."""
_MESSAGES_A_CHUNK = 50
_CHARACTERS_A_CHUNK = 300_000


def write_page(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one HTML page. The caller holds a read transaction.

    Args:
        redactor: makes one that takes secrets out; None leaves them in.

    Returns:
        How many secrets were taken out; None where they were left in.
    """
    secrets = redactor() if redactor is not None else None
    clean: Clean = secrets if secrets is not None else lambda value: value
    whole = overview(connection, session_id, clean)
    places = {agent.id: index for index, agent in enumerate(whole.agents)}
    style, program = _resource("page.css"), _resource("page.js")
    out.write(_head(whole, style, program))
    out.write(parts.contents(whole))
    out.write(
        '<main id="main">\n<div id="results" role="region" aria-live="polite" aria-label="Search results" hidden></div>\n'
    )
    out.write(parts.overview_section(whole))
    out.write(plan_section(whole))
    out.write(parts.cost_section(whole))
    for piece in compaction_section(connection, session_id, clean, whole, places):
        out.write(piece)
    out.write(parts.memory_section(whole, places))
    for piece in parts.artifact_section(connection, whole, clean):
        out.write(piece)
    out.write('<section id="transcripts">\n<h2>Transcripts</h2>\n')
    out.write(
        '<noscript><p class="note">Transcripts and search need JavaScript, which is part of this page.</p></noscript>\n'
    )
    share = LARGEST_TRANSCRIPTS // max(1, len(whole.agents))
    for place, agent in enumerate(whole.agents):
        _transcript(out, place, agent, transcript(connection, agent.id, clean), share)
    out.write(
        "</section>\n" + parts.foot(secrets.count if secrets is not None else None) + "</main>\n</div>\n"
    )
    names = [agent.name for agent in whole.agents]
    out.write(f'<script type="application/json" id="agents-data">{data_block(names)}</script>\n')
    out.write(f"<script>{program}</script>\n</body>\n</html>\n")
    return secrets.count if secrets is not None else None


def data_block(value: object) -> str:
    """JSON that may stand in a script element: nothing in it ends the element, opens a comment, or ends a
    line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    return files("watchkeeper.transcripts.export").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _head(whole: Overview, style: str, program: str) -> str:
    policy = f"default-src 'none'; script-src '{_hash(program)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    title = escape(whole.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=False)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="Watchkeeper">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the session</a>\n<header class="top">\n'
        f'<a class="brand" href="#overview">{title}<span class="id">{escape(whole.id)}</span></a>\n'
        '<div class="search" role="search"><input id="search" type="search" autocomplete="off" spellcheck="false"'
        ' placeholder="Search everything  ( / )" aria-label="Search everything in this session"></div>\n'
        '<button id="theme" class="quiet" type="button" title="Switch between light and dark">Dark</button>\n'
        '</header>\n<div class="page">\n'
    )


def _transcript(out: TextIO, place: int, agent: AgentLine, messages: Iterable[Said], share: int) -> None:
    opened = " open" if place == 0 else ""
    figures = [
        agent.role if agent.role != agent.name else "",
        agent.model,
        plural(agent.messages, "message"),
        f"{agent.spent.total:,} tokens" if agent.spent.total else "",
        duration(agent.seconds) if agent.seconds else "",
    ]
    out.write(
        f'<details class="transcript" id="agent-{place}" data-agent="{place}"{opened}><summary>'
        f'{parts.glyph_of(agent.status)}<span class="title">{escape(agent.name)}</span>'
        f'<span class="muted small">{escape(" · ".join(part for part in figures if part))}</span></summary>\n'
    )
    if agent.goal or agent.reason:
        about = " — ".join(escape(text) for text in (agent.goal, agent.reason) if text)
        out.write(f'<p class="muted small about">{about}</p>\n')
    out.write(
        '<div class="tools"><button class="quiet" type="button" data-fold="open">Unfold all</button>'
        '<button class="quiet" type="button" data-fold="close">Fold all</button></div>\n<div class="messages"></div>\n'
    )
    chunk: list[str] = []
    size = written = first = last = 0
    left_out = 0
    for said in messages:
        if written > share:
            left_out += 1
            continue
        text = _said(said)
        first = first if chunk else said.seq
        last = said.seq
        chunk.append(text)
        size += len(text)
        written += len(text)
        if len(chunk) >= _MESSAGES_A_CHUNK or size >= _CHARACTERS_A_CHUNK:
            _chunk(out, place, first, last, chunk)
            chunk, size = [], 0
    if chunk:
        _chunk(out, place, first, last, chunk)
    if left_out:
        out.write(
            f'<p class="note">The {left_out:,} messages after #{last} are left out, for the page would be too large to open.'
            " The JSON export has them all.</p>\n"
        )
    out.write("</details>\n")


def _said(said: Said) -> str:
    pieces = [[one.kind, one.text, one.left_out, one.name, one.id, int(one.is_error)] for one in said.pieces]
    return data_block([said.seq, said.role, moment(said.at), said.tokens, pieces, int(said.taken_back)])


def _chunk(out: TextIO, place: int, first: int, last: int, messages: list[str]) -> None:
    out.write(
        f'<script type="application/json" class="chunk" data-agent="{place}" data-first="{first}" data-last="{last}">['
    )
    out.write(",\n".join(messages))
    out.write("]</script>\n")
