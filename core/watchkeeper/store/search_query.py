"""What a person types to search messages, as FTS5 queries. Nothing typed is ever FTS5 syntax: every word is
quoted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from watchkeeper.store.encoding import plain
from watchkeeper.store.message_text import WordTable, cjk

PREFIX_LETTERS = 3
"""From this length on, the last word typed may be the beginning of a longer one."""

MOST_WORDS = 16

_SPLIT = re.compile(r'"([^"]*)("?)|([^\s"]+)')


@dataclass(frozen=True, slots=True)
class Typed:
    """One word as typed, or what stood between quotation marks."""

    text: str
    quoted: bool
    """Between two quotation marks: these words exactly, next to each other."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one typed word looks for: its tokens, next to each other and in this order."""

    text: str
    tokens: tuple[str, ...]
    prefix: bool
    """Whether the last token may be the beginning of a word."""


@dataclass(frozen=True, slots=True)
class Query:
    """The terms that a message must all hold, somewhere."""

    terms: tuple[Term, ...]

    @property
    def phrases(self) -> bool:
        """Whether the index alone cannot tell: it knows which words a message holds, not where."""
        return any(len(term.tokens) > 1 for term in self.terms)

    def for_index(self, *also: str) -> str:
        """The query for the index: every token, and the tokens `also`."""
        tokens = [_quoted(one) for one in also]
        for term in self.terms:
            last = len(term.tokens) - 1
            tokens += [
                _quoted(token) + ("*" if term.prefix and at == last else "")
                for at, token in enumerate(term.tokens)
            ]
        return " ".join(dict.fromkeys(tokens))

    def for_texts(self) -> str:
        """The query for texts whose words' places are known (`WordTable`)."""
        return " ".join(_quoted(" ".join(term.tokens)) + ("*" if term.prefix else "") for term in self.terms)


def typed_words(search: str) -> list[Typed]:
    """The words and quoted phrases of what was typed; an open quotation mark reaches to the end."""
    found = []
    for match in _SPLIT.finditer(search):
        text = match[3] if match[3] is not None else match[1]
        if text.strip():
            found.append(Typed(text, match[3] is None and bool(match[2])))
    return found


def parse_query(search: str, table: WordTable, *, prefix: bool) -> Query:
    """The query for what was typed. With `prefix`, the last word may be the beginning of one, from three
    letters on.

    Words without a letter or digit say nothing. One character of a script written without spaces is always a
    beginning.
    """
    terms: list[Term] = []
    typed = typed_words(search)[:MOST_WORDS]
    for at, word in enumerate(typed):
        tokens = table.tokens(plain(word.text))
        if not tokens:
            continue
        pairs = cjk(tokens[-1])
        if pairs and len(tokens) > 1 and len(tokens[-1]) == 1 and tokens[-1] == tokens[-2][-1:]:
            tokens.pop()  # the run's last character alone: only text that ends there has it
            beginning = False
        else:
            beginning = pairs and len(tokens[-1]) == 1
        if prefix and not pairs and at == len(typed) - 1 and not word.quoted:
            beginning = len(tokens[-1]) >= PREFIX_LETTERS and word.text[-1:].isalnum()
        terms.append(Term(word.text, tuple(tokens), beginning))
    return Query(tuple(terms))


def _quoted(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'
