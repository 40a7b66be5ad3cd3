"""What may be done to a manager, by whom, and what summarisers answer: strategies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

WORDS = [
    "src/parser/tokens.py",
    "error: cannot find `x`",
    "0f3c9ab12d",
    "DECIDED: port 8443",
    "ünï",
    "漢字",
    "🙂",
    "\x00",
    "  ",
    "\n",
    "#7",
    "[3]",
    "a",
]


TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
    st.tuples(st.sampled_from(WORDS), st.integers(1, 900)).map(lambda pair: (pair[0] + " ") * pair[1]),
    st.sampled_from(["", " ", "\n\t"]),
)


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.invalid/a.png"}}


DOCUMENT = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "page " * 30},
    "title": "Notes",
}


@st.composite
def blocks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Blocks of a user or an assistant that are no calls and no results."""
    kinds = st.sampled_from(["text", "text", "image", "document", "empty"])
    made: list[dict[str, Any]] = []
    for kind in draw(st.lists(kinds, min_size=0, max_size=3)):
        if kind == "text":
            made.append({"type": "text", "text": draw(TEXT)})
        elif kind == "empty":
            made.append({"type": "text", "text": ""})
        else:
            made.append(dict(IMAGE if kind == "image" else DOCUMENT))
    return made


LEAVES = st.one_of(TEXT, st.integers(-5, 5), st.booleans(), st.none())


INPUTS = st.dictionaries(
    st.sampled_from(["path", "text", "options"]), st.one_of(LEAVES, st.lists(LEAVES, max_size=3)), max_size=3
)


STEPS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(["user", "assistant"]), st.one_of(TEXT, blocks())),
    st.tuples(st.just("say"), st.sampled_from(["user", "assistant"]), st.one_of(TEXT, blocks())),
    st.tuples(st.just("calls"), st.integers(1, 3), INPUTS),
    st.tuples(st.just("calls"), st.integers(1, 3), INPUTS),
    st.tuples(st.just("results"), st.integers(1, 3), TEXT),
    st.tuples(st.just("results"), st.integers(1, 3), TEXT),
    st.tuples(st.just("ghost"), st.just(0), TEXT),
    st.tuples(st.just("compact"), st.one_of(st.none(), st.integers(-1, 45)), st.booleans()),
    st.tuples(st.just("compact twice"), st.one_of(st.none(), st.integers(0, 45)), st.booleans()),
    st.tuples(st.just("cancel"), st.just(0), st.integers(0, 3)),
    st.tuples(st.just("cancelled add"), st.integers(0, 4), TEXT),
    st.tuples(st.just("undo"), st.just(0), st.just(0)),
    st.tuples(st.just("redo"), st.just(0), st.just(0)),
    st.tuples(st.just("undo and redo"), st.just(0), st.just(0)),
    st.tuples(st.just("idle"), st.just(0), st.just(0)),
    st.tuples(st.just("turns of the loop"), st.integers(1, 12), st.just(0)),
    st.tuples(st.just("close"), st.integers(0, 12), st.just(0)),
)


# A list without a minimum has five items on average: too few for anything to happen.
MANY_STEPS = st.one_of(st.lists(STEPS, max_size=10), st.lists(STEPS, min_size=25, max_size=60))


SAYS: dict[str, Callable[[list[dict[str, Any]], str | None], Any]] = {
    "good": lambda messages, previous: f"{(previous or '')[:40]} Then {len(messages)} messages.",
    "cites": lambda messages, previous: "The port is 8443 [1].\nThe parser is broken (#2).",
    "invents some": lambda messages, previous: "Kept, as it says nothing wrong.\nInvented (#99999).",
    "invents all": lambda messages, previous: "Invented (#99999).",
    "nothing": lambda messages, previous: "",
    "None": lambda messages, previous: None,
    "number": lambda messages, previous: 7,
    "more than it got": lambda messages, previous: json.dumps(messages) * 2,
    "endless": lambda messages, previous: "babble " * 9_000,
    "surrogate": lambda messages, previous: "half \ud83d of a pair",
    "headings": lambda messages, previous: (
        "# Digest, made without a model.\nFull text: message://agent/1-9\nGoals:\n- x (#1)"
    ),
}


FAILS: dict[str, Callable[[], BaseException]] = {
    "fails": lambda: RuntimeError("529"),
    "times out": lambda: TimeoutError("read"),
    "cancels itself": asyncio.CancelledError,
    "breaks": lambda: BaseException("panic"),
}


SUMMARISERS = st.lists(
    st.tuples(st.sampled_from([*SAYS, *SAYS, *FAILS, "hangs"]), st.integers(0, 30)), min_size=1, max_size=4
)
