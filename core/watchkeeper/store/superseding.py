"""When a new fact says again, or brings up to date, what an older one said: a rule on two texts, no model
asked.

The rule is conservative, since a fact that is superseded is recalled no more. Two facts are the same if they
differ only in articles, "now", case and punctuation. One updates the other only where both speak of the same
subject *before* a verb that has one answer at a time ("is", "listens on", "lives in", "is set to", `key:`),
and after it

- nothing differs but one value of the same sort (a number, a version, a path, a URL, a hash, on/off), in the
  same words; or
- the subject is a thing that has one answer ("the default branch", "the owner of the parser", "port"), and
  both answers are a few plain words.

A difference in the subject ("step 2 is green", "step 3 is green"), a verb that may have many answers
("depends on", "contains", "saw"), "not", "and", "or" and commas: both facts stay.
"""

from __future__ import annotations

import re

SAME_KINDS = ("fact", "decision")
"""Kinds that may be superseded by this rule. Outcomes happened, artifacts exist, instructions are a
person's."""
LONGEST_CHARACTERS = 400
MOST_ANSWER_WORDS = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOKEN = re.compile(r"[^\s\"'`“”‘’()\[\]{}<>]+")
_EDGES = ".,;!?"
_FILLERS = _words("a an the now current currently today actually still already again presently")
_VERBS: tuple[tuple[str, ...], ...] = tuple(
    tuple(verb.split())
    for verb in (
        "is set to", "is now set to", "was set to", "has been set to", "is changed to", "was changed to", "was moved to",
        "was renamed to", "is called", "is named", "is located at", "is located in", "is stored in", "is kept in", "is at",
        "is in", "is on", "is", "are set to", "are stored in", "are kept in", "are in", "are", "equals", "defaults to",
        "listens on", "listens at", "runs on", "runs at", "lives in", "lives at", "resides in", "points to", "moved to",
        "has", "takes", "costs", "expires after", "expires in", "expires on", "starts at", "ends at", "stands at", "=", ":",
    )
)  # fmt: skip
_VERBS_BY_FIRST = {
    first: tuple(verb for verb in _VERBS if verb[0] == first) for first in {verb[0] for verb in _VERBS}
}
_ONLY_WITH_VALUES = frozenset({("has",), ("takes",), ("costs",)})
_SINGLE = _words("""
port version path branch limit name url host hostname address timeout size default owner deadline database language
license status state budget threshold maximum minimum interval rate region endpoint directory folder file filename
location username user password-file format encoding timezone locale model engine backend driver compiler target goal
title colour color price cost duration capacity quota level mode priority maintainer assignee reviewer lead winner
count total number date
""")
"""Nouns of which a subject has one at a time."""
_ALONE = _words(
    "port version branch limit hostname url timeout owner deadline database license budget threshold region"
    " endpoint"
)
"""Those that say by themselves what is meant: many things have a name, a status, a total."""
_MANY = _words(
    "not no never nor and or but also either neither both one some partly sometimes usually often n't"
)
_ORDINAL = _words(
    "step test case phase part item chapter page line issue ticket task run attempt round sample bug"
)
_LINKS = _words("of for in on to at by with from as")
_KEY = re.compile(r"[A-Za-z_][\w.-]*\Z")

_NUMBER = re.compile(r"[$€£]?-?\d[\d,_]*(?:\.\d+)?(?:%|[a-zA-Zµ]{1,4})?\Z")
_VERSION = re.compile(r"v?\d+(?:\.\d+){1,4}(?:[-+.]?[a-z]+[\w.]*)?\Z", re.I)
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,15}://\S+\Z", re.I)
_PATH = re.compile(r"(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]*)+\Z|[\w@+-][\w.@+-]*\.[a-z][a-z0-9]{0,9}\Z", re.I)
_HASH = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\Z", re.I)
_SWITCH = _words("on off true false enabled disabled yes open closed public private up down")


def is_same(old: str, new: str) -> bool:
    """Whether both texts say the same in the same words, but for articles, "now", case and punctuation."""
    first = _tokens(old)
    return bool(first) and first == _tokens(new)


def is_update(old: str, new: str) -> bool:
    """Whether `new` gives the present answer where `old` gave an earlier one. False where there is any
    doubt."""
    if max(len(old), len(new)) > LONGEST_CHARACTERS or "\n" in old.strip() or "\n" in new.strip():
        return False
    first, second = _parted(old), _parted(new)
    if first is None or second is None:
        return False
    (subject, verb, before), (other, other_verb, after) = first, second
    if subject != other or not _tells(subject, verb) or before == after:
        return False
    single = (
        verb not in _ONLY_WITH_VALUES and other_verb not in _ONLY_WITH_VALUES and _has_one_answer(subject)
    )
    if (verb == other_verb or single) and _one_value_differs(before, after):
        return True
    return single and _is_plain(before) and _is_plain(after)


def subject_of(text: str) -> list[str]:
    """Words, without the commonest, that every text has which is the same as this one, or an update of it."""
    parts = _parted(text) if len(text) <= LONGEST_CHARACTERS else None
    words = parts[0] if parts is not None else [word for word in _tokens(text) if word not in (":", "=")]
    return [word for word in words if word not in _LINKS] or words


def _tokens(text: str) -> list[str]:
    """Words and values, lower-cased, without fillers; a colon or `=` at a word's end stands for itself."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        token = token.strip(_EDGES)
        ends = token[-1:] if token[-1:] in (":", "=") else ""
        token = token.rstrip(":=")
        if token and token.lower() not in _FILLERS:
            found.append(token.lower())
        if ends:
            found.append(ends)
    return found


def _parted(text: str) -> tuple[list[str], tuple[str, ...], list[str]] | None:
    """The subject, the first verb that has one answer, and the answer."""
    if ", " in text or ";" in text or "?" in text:
        return None
    tokens = _tokens(text)
    for at in range(1, len(tokens)):
        for verb in _VERBS_BY_FIRST.get(tokens[at], ()):
            if tuple(tokens[at : at + len(verb)]) == verb and at + len(verb) < len(tokens):
                return tokens[:at], verb, tokens[at + len(verb) :]
    return None


def _tells(subject: list[str], verb: tuple[str, ...]) -> bool:
    """Whether the subject names one thing, so that two facts about it are about the same."""
    if subject[0] in ("it", "this", "that", "there", "he", "she", "they", "we", "i", "you", "these", "those"):
        return False
    if len(subject) == 1 and subject[0] in _SINGLE:
        return subject[0] in _ALONE
    if verb in ((":",), ("=",)):
        named = (
            len(subject) == 1
            and _KEY.match(subject[0]) is not None
            and ("_" in subject[0] or "." in subject[0])
        )
        return named or _has_one_answer(subject)
    return len(subject) <= 12 and not any(word in _MANY for word in subject)


def _has_one_answer(subject: list[str]) -> bool:
    """Whether the head of the subject is a noun that has one answer: `default branch`, `port of the
    proxy`."""
    head = subject
    for link in _LINKS:
        if link in head[1:]:
            head = head[: head.index(link, 1)]
    return head[-1] in _SINGLE


def _one_value_differs(before: list[str], after: list[str]) -> bool:
    if len(before) != len(after) or any(word in _MANY for word in before):
        return False
    places = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    if len(places) != 1:
        return False
    at = places[0]
    if at and before[at - 1] in _ORDINAL:
        return False
    sort = _sort_of(before[at])
    return sort is not None and sort == _sort_of(after[at])


def _is_plain(words: list[str]) -> bool:
    """An answer in a few words without values: "10 requests" and "20 megabytes" may both be limits."""
    return len(words) <= MOST_ANSWER_WORDS and not any(word in _MANY or _sort_of(word) for word in words)


def _sort_of(token: str) -> str | None:
    """The sort of a value; None for a word."""
    if token in _SWITCH:
        return "switch"
    # A version such as 1.2 is a number too, and a number such as 8 may become a version.
    if _NUMBER.match(token) or _VERSION.match(token):
        return "number"
    if _URL.match(token):
        return "url"
    if _HASH.match(token):
        return "hash"
    return "path" if _PATH.match(token) else None
