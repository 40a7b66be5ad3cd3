"""What a person took back in OpenCode leaves the context until it is brought back; all of it stays."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import Book, compacted
from tests.core.transcripts.test_opencode_second import Second

from watchkeeper.store.database import open_readonly
from watchkeeper.transcripts.export import TranscriptMessage, transcript


def _talk(book: Book, session: str, *prompts: str) -> list[str]:
    """Prompts with an answer each: the prompts' messages."""
    asked = []
    for prompt in prompts:
        asked.append(book.user(session, prompt))
        answer = book.assistant(session)
        book.part(answer, "step-start")
        book.part(answer, "text", text=f"Done: {prompt}.")
        book.tool(answer, f"call-{prompt}")
        book.step(answer, 100, 10)
    return asked


def _context(store: Store) -> list[str]:
    """What the main agent's context holds now: its observations, and words of its messages."""
    view = store.one(
        "SELECT v.observations, v.verbatim_from, v.elided, v.agent_id FROM views v JOIN agents a"
        " ON a.id = v.agent_id AND a.view_version = v.version AND a.parent_agent_id IS NULL"
    )
    gone = {each[0] for each in json.loads(view[2]) if not each[4]}
    said = store.all(
        "SELECT seq, content, tokens FROM messages WHERE agent_id = ? AND seq >= ? ORDER BY seq",
        view[3],
        view[1],
    )
    tokens = json.loads(store.one("SELECT composition FROM agents WHERE id = ?", view[3]))
    assert tokens["messages"] == sum(each[2] for each in said if each[0] not in gone)
    found = [f"summary {each}" for each in json.loads(view[0])]
    for seq, content, _ in said:
        block = json.loads(content)[0]
        if seq not in gone:
            found.append(
                block.get("text") or f"{block['type']} {block.get('id') or block.get('tool_use_id')}"
            )
    return found


def _transcript(store: Store) -> list[TranscriptMessage]:
    with closing(open_readonly(store.path)) as connection:
        return list(transcript(connection, store.one("SELECT id FROM agents"), lambda text: text))


def _turn(prompt: str) -> list[str]:
    return [prompt, f"Done: {prompt}.", f"tool_use call-{prompt}", f"tool_result call-{prompt}"]


def test_what_is_undone_is_in_the_context_no_more_and_nothing_is_lost(store: Store, logs: Path) -> None:
    book = Book()
    session = book.session()
    _, second = _talk(book, session, "one", "two")
    book.undo(session, second)
    path = book.database(logs)
    store.run(path)
    assert _context(store) == _turn("one")
    assert store.counts()["messages"] == 8
    assert store.one("SELECT model_calls, output_tokens FROM sessions") == (2, 20)
    rows = store.all("SELECT json_extract(data, '$.messages') FROM events WHERE kind = 'context.rewound'")
    assert rows == [(4,)]
    assert store.run(path).lines == 0


def test_what_is_brought_back_is_in_the_context_again(store: Store, logs: Path) -> None:
    book = Book()
    session = book.session()
    first, second = _talk(book, session, "one", "two")
    store.run(book.database(logs))
    book.undo(session, second)
    store.run(book.database(logs))
    assert [said.seq for said in _transcript(store) if said.undone] == [5, 6, 7, 8]
    for place, expected in (
        (second, _turn("one")),
        (first, []),
        (second, _turn("one")),
        (None, _turn("one") + _turn("two")),
    ):
        book.redo(session) if place is None else book.undo(session, place)
        store.run(book.database(logs))
        assert _context(store) == expected
    assert not any(said.undone for said in _transcript(store))
    book.undo(session, second)
    store.run(book.database(logs))
    assert _context(store) == _turn("one")
    assert store.counts()["messages"] == 8


@pytest.mark.parametrize("looked", [True, False])
def test_what_the_next_prompt_removed_is_gone_whether_or_not_anybody_looked_meanwhile(store, logs, looked):
    book = Book()
    session = book.session()
    _, second, _ = _talk(book, session, "one", "two", "three")
    store.run(book.database(logs))
    book.undo(session, second)
    if looked:
        store.run(book.database(logs))
    book.clean_up(session)
    _talk(book, session, "four")
    path = book.database(logs)
    store.run(path)
    assert _context(store) == _turn("one") + _turn("four")
    assert store.counts()["messages"] == 16
    assert store.run(path).lines == 0
    # What was removed is not brought back by another undo that is.
    book.undo(session, next(reversed(_prompts(book))))
    store.run(book.database(logs))
    assert _context(store) == _turn("one")
    book.redo(session)
    store.run(book.database(logs))
    assert _context(store) == _turn("one") + _turn("four")


def _prompts(book: Book) -> dict[str, None]:
    return {each: None for each, about in book.messages.items() if about["role"] == "user"}


def test_a_place_within_a_reply_takes_back_what_came_after_it(store: Store, logs: Path) -> None:
    book = Book()
    session = book.session()
    _talk(book, session, "one", "two")
    answer = list(book.messages)[1]
    tool = next(
        each for each, about in book.parts.items() if about["messageID"] == answer and about["type"] == "tool"
    )
    book.undo(session, answer, tool)
    store.run(book.database(logs))
    assert _context(store) == ["one", "Done: one."]


def test_an_undo_from_before_a_compaction_takes_that_back_as_well(store: Store, logs: Path) -> None:
    book = Book()
    session = book.session()
    _, second = _talk(book, session, "one", "two")
    compacted(book, session)
    _talk(book, session, "three")
    store.run(book.database(logs))
    whole = ["summary 1", *_turn("three")]
    assert _context(store) == whole
    book.undo(session, second)
    store.run(book.database(logs))
    assert _context(store) == _turn("one")
    book.redo(session)
    store.run(book.database(logs))
    assert _context(store) == whole
    assert store.one("SELECT tokens FROM views ORDER BY version DESC LIMIT 1") == store.one(
        "SELECT json_extract(composition, '$.messages') + json_extract(composition, '$.observations') FROM"
        " agents"
    )


def test_a_revert_that_names_nothing_that_is_there_changes_nothing(store: Store, logs: Path) -> None:
    book = Book()
    session = book.session()
    _talk(book, session, "one")
    for place in ("msg_unknown", 7, ""):
        book.undo(session, place)  # type: ignore[arg-type]
        store.run(book.database(logs))
        assert _context(store) == _turn("one")


def test_opencode_2_keeps_its_undo_in_the_sessions_row(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.connection.execute("ALTER TABLE session_v2 ADD COLUMN revert TEXT")
    book.add(session, "user", text="one")
    book.reply(session, {"type": "text", "text": "Done: one."})
    place = book.add(session, "user", text="two")
    book.reply(session, {"type": "text", "text": "Done: two."})
    everything = ["one", "Done: one.", "two", "Done: two."]
    store.run(logs)

    def set_revert(value: str | None) -> None:
        book.connection.execute("UPDATE session_v2 SET revert = ?, time_updated = ?", (value, book.tick()))
        book.connection.commit()
        store.run(logs)

    set_revert(json.dumps({"messageID": place, "files": []}))
    assert _context(store) == everything[:2]
    set_revert(None)
    assert _context(store) == everything
    book.connection.execute("DELETE FROM session_message WHERE seq >= 3")
    book.add(session, "user", text="three")
    store.run(logs)
    assert _context(store) == [*everything[:2], "three"]
