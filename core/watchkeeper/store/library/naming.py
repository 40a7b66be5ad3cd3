"""A session's title and tags."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from watchkeeper.records.errors import BadInput
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode, encode, plain
from watchkeeper.store.library.changing import change
from watchkeeper.store.user_secrets import user_redactor

LONGEST_TITLE = 400
LONGEST_TAG = 60
MOST_TAGS = 50


def rename(path: Path, session_id: str, title: str) -> str | None:
    """Give a session a title; an empty one takes it away, and the goal is shown again. Returns the title as
    kept.

    Raises:
        BadInput: longer than 400 characters.
        DrivenElsewhere, NotFound, StoreUnusable: see `changing.change`.
    """
    kept = title_of(title)

    def work(connection: Connection) -> str | None:
        connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (kept, session_id))
        return kept

    return change(path, session_id, "rename", work)


def title_of(text: str) -> str | None:
    """The title as it is kept: one line, without secrets; None where nothing is left.

    Raises:
        BadInput: longer than 400 characters.
    """
    kept = " ".join(user_redactor().text(plain(text)).split()) or None
    if kept is not None and len(kept) > LONGEST_TITLE:
        raise BadInput(f"the title has {len(kept)} characters; at most {LONGEST_TITLE} are kept")
    return kept


def change_tags(
    path: Path, session_id: str, *, add: Iterable[str] = (), remove: Iterable[str] = ()
) -> tuple[str, ...]:
    """Add tags and take tags away; returns those that the session has now, in the order in which they were
    given.

    A tag is one word without commas or quotes, compared without regard to case; `#` and `+` before it are
    dropped.

    Raises:
        BadInput: not such a word, or too many.
        DrivenElsewhere, NotFound, StoreUnusable: see `changing.change`.
    """
    added, removed = [tag_of(one) for one in add], {tag_of(one).casefold() for one in remove}

    def work(connection: Connection) -> tuple[str, ...]:
        row = connection.execute("SELECT tags FROM sessions WHERE id = ?", (session_id,)).fetchone()
        kept: dict[str, str] = {}
        for tag in [*(str(one) for one in decode(row[0])), *added]:
            kept.setdefault(tag.casefold(), tag)
        tags = tuple(tag for key, tag in kept.items() if key not in removed)
        if len(tags) > MOST_TAGS:
            raise BadInput(f"{len(tags)} tags are too many; at most {MOST_TAGS} are kept")
        connection.execute("UPDATE sessions SET tags = ? WHERE id = ?", (encode(list(tags)), session_id))
        return tags

    return change(path, session_id, "tag", work)


def tag_of(text: str) -> str:
    """The tag that `text` means.

    Raises:
        BadInput: none.
    """
    tag = plain(text).strip().lstrip("#+")
    if user_redactor().text(tag) != tag:
        raise BadInput("a tag is seen by everybody; this one is a secret")
    if (
        not tag
        or len(tag) > LONGEST_TAG
        or any(character.isspace() or character in ",\"'[]" for character in tag)
    ):
        raise BadInput(
            f"{text!r} is no tag; a tag is one word of at most {LONGEST_TAG} characters, such as `nightly`"
        )
    if not tag.isprintable():
        raise BadInput("a tag holds printable characters only")
    return tag
