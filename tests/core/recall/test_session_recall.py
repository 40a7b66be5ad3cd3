"""Who recalls what of a session, and of the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.core.recall.conftest import Session

from watchkeeper.memory.recall import recall, session_rules
from watchkeeper.store import database, facts
from watchkeeper.store.engine import index_of

Start = Callable[..., Session]


def texts(session: Session, query: str, scope: str = "workspace", reader: str | None = "bob") -> list[str]:
    name = session.name(reader) if reader else None
    return [one.text for one in recall(session.store, session.id, query, scope, reader=name)]


def test_siblings_recall_what_others_found(session: Session) -> None:
    session.use("ann", "remember", text="The queue lives in src/queue.py")
    said = session.use("bob", "recall", query="where is the queue?")
    assert re.search(r"^- \[fact \d+\] The queue lives in src/queue.py \(message://ann_\w+/0\)$", said, re.M)


def test_what_was_said_in_the_session_is_found_by_pointer_and_read_back_in_one_more_call(
    session: Session,
) -> None:
    session.say("ann", "The retry budget is seven attempts.")
    pointer = session.say("ann", [{"type": "text", "text": "Timeouts are 30 seconds. " + "filler " * 200}])
    said = session.use("bob", "recall", query="how long is the timeout?")
    assert f"({pointer})" in said
    assert "Timeouts are 30 seconds." in session.use("bob", "read_back", pointer=pointer)


def test_tool_results_are_searched_and_calls_of_memory_tools_are_not(session: Session) -> None:
    session.say(
        "ann", [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "pytest -k zebra"}}]
    )
    session.say("ann", [{"type": "tool_result", "tool_use_id": "t1", "content": "zebra: 3 failed"}], "user")
    session.say(
        "ann", [{"type": "tool_use", "id": "t2", "name": "recall", "input": {"query": "zebra failed"}}]
    )
    assert texts(session, "zebra failed") == ["zebra: 3 failed", "bash pytest -k zebra"]


@pytest.mark.parametrize("query", ["queueworker", "expectedzebra", "markedtapir", "receivedgiraffe"])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_words_behind_and_inside_colours_are_recalled(session: Session, query: str, is_indexed: bool) -> None:
    report = "\x1b[1mqueueworker\x1b[22m \x1b[32mexpectedzebra\x1b[39m \x1b[1;31mreceivedgiraffe\x1b[0m mar\x1b[1mkedtapir"
    session.say("ann", [{"type": "tool_result", "tool_use_id": "t1", "content": report}], "user")
    session.use("ann", "remember", text="It is the \x1b[31mfactualmoose\x1b[0m that fails")
    if is_indexed:
        with closing(database.open_writable(session.store.path)) as connection:
            assert index_of(connection).index_until(seconds=60)
    assert texts(session, query) == ["queueworker expectedzebra receivedgiraffe markedtapir"]
    assert texts(session, "factualmoose") == ["It is the factualmoose that fails"]


def test_what_the_reader_has_in_its_context_is_not_found_again(session: Session) -> None:
    session.say("bob", "The gate opens at nine.")
    session.say("bob", "Which gate, though?")
    session.show_from("bob", 2)
    assert texts(session, "gate") == ["The gate opens at nine."]
    assert set(texts(session, "gate", reader="ann")) == {"The gate opens at nine.", "Which gate, though?"}


def test_the_scope_agent_finds_only_what_the_reader_wrote_itself(session: Session) -> None:
    session.use("ann", "remember", text="Ann knows the harbour")
    session.use("bob", "remember", text="Bob knows the harbour too")
    session.say("ann", "harbour, said Ann")
    assert texts(session, "harbour", "agent") == ["Bob knows the harbour too"]


def test_facts_of_the_workspace_reach_later_sessions_there_and_no_others(start: Start) -> None:
    first = start()
    first.use("ann", "remember", text="The release branch is called stable", scope="workspace")
    first.use("ann", "remember", text="The release was rehearsed today")
    later, elsewhere = start(), start("elsewhere")
    assert texts(later, "release") == ["The release branch is called stable"]
    assert texts(later, "release", "session") == []
    assert texts(elsewhere, "release") == []


def test_messages_of_other_sessions_are_never_found(start: Start) -> None:
    start().say("ann", "a secret of the first session")
    assert texts(start(), "secret") == []


def test_a_fact_in_the_same_words_is_kept_once_and_the_wider_scope_holds(start: Start) -> None:
    first = start()
    one = first.use("ann", "remember", text="Tabs, not spaces.")
    again = first.use("bob", "remember", text="tabs,  not spaces", scope="workspace")
    assert again == one.replace("stored as", "already stored as")
    later = start()
    assert texts(later, "tabs") == ["Tabs, not spaces."]
    assert "already stored" in later.use("ann", "remember", text="Tabs, not spaces.")


def test_a_fact_that_was_replaced_is_recalled_no_more(session: Session) -> None:
    old = session.use("ann", "remember", text="The limit is 10 requests")
    number = int(old.split()[-1])
    said = session.use("bob", "remember", text="The limit is 20 requests", replaces=number)
    assert said.endswith(f"replaces fact {number}")
    assert texts(session, "limit requests") == ["The limit is 20 requests"]


def test_only_a_fact_that_the_session_sees_can_be_replaced_and_only_once(start: Start) -> None:
    other = int(start("elsewhere").use("ann", "remember", text="Theirs", scope="workspace").split()[-1])
    session = start()
    mine = int(session.use("ann", "remember", text="One").split()[-1])
    session.use("ann", "remember", text="Two", replaces=mine)
    for wrong in (other, mine, 999):
        with pytest.raises(ValueError, match="replaces"):
            session.use("ann", "remember", text="Three", replaces=wrong)
    assert texts(session, "three") == []


def test_an_identifier_is_found_inside_a_longer_word_in_facts_and_in_messages(session: Session) -> None:
    session.use("ann", "remember", text="See https://ci.example/job/88142-linux for it")
    pointer = session.say("ann", "digest sha256:9f86d081884c7d659a2f")
    assert texts(session, "job 88142")
    found = recall(session.store, session.id, "what is 9f86d0818?", reader=session.name("bob"))
    assert [one.sources for one in found] == [(pointer,)]


def test_a_person_sees_everybodys_facts_and_may_search_all_sessions(start: Start) -> None:
    for word in ("alpha", "beta"):
        start().use("ann", "remember", text=f"The {word} lighthouse is lit")
    assert len(recall(start().store, None, "lighthouse")) == 2


def test_facts_come_first_and_leave_room_for_messages(session: Session) -> None:
    for number in range(6):
        session.use("ann", "remember", text=f"whale sighting {number}")
        session.say("ann", f"I saw a whale, number {number}")
    kinds = [
        one.kind for one in recall(session.store, session.id, "whale", limit=6, reader=session.name("bob"))
    ]
    assert kinds == ["fact"] * 3 + ["message"] * 3


def test_an_answer_beside_the_message_that_holds_the_words_is_found(session: Session) -> None:
    session.say("ann", "Which colour has the buoy?", "user")
    answer = session.say("ann", "Green.")
    for number in range(20):
        session.say("ann", f"something else {number}")
    found = recall(session.store, session.id, "colour of the buoy", limit=4, reader=session.name("bob"))
    assert (answer,) in [one.sources for one in found]


@pytest.mark.parametrize("query", ['"', "*", "\ud800 x", "' OR 1=1 --", "🙂", "a\x00b", "the"])
def test_any_text_is_a_valid_query_of_the_store(session: Session, query: str) -> None:
    session.say("ann", "hello 🙂")
    session.use("ann", "remember", text="hello 🙂")
    texts(session, query)


def test_chinese_facts_and_messages_are_found_by_a_part_of_them(session: Session) -> None:
    session.use("ann", "remember", text="代理监听端口8443")
    session.say("ann", "我昨天在北京买了一本书")
    assert texts(session, "监听端口") == ["代理监听端口8443"]
    assert texts(session, "在北京买书") == ["我昨天在北京买了一本书"]


def test_a_new_value_of_the_same_subject_supersedes_the_old_one_and_points_to_it(session: Session) -> None:
    old = int(session.use("ann", "remember", text="The proxy listens on port 8080").split()[-1])
    said = session.use("bob", "remember", text="The proxy now listens on port 8443")
    assert f"replaces fact {old} (The proxy listens on port 8080)" in said
    assert texts(session, "proxy port") == ["The proxy now listens on port 8443"]
    recalled = session.use("ann", "recall", query="proxy port")
    (pointer,) = re.findall(r"replaces (fact://[0-9a-f]{12})", recalled)
    read = session.use("ann", "read_back", pointer=pointer)
    assert "The proxy listens on port 8080" in read
    assert "superseded by fact://" in read


def test_who_says_that_both_hold_keeps_both(session: Session) -> None:
    session.use("ann", "remember", text="The proxy listens on port 8080")
    session.use("ann", "remember", text="The proxy listens on port 8443", also=True)
    assert len(texts(session, "proxy port")) == 2


def test_facts_of_different_subjects_kinds_and_sessions_stay(start: Start) -> None:
    first = start()
    first.use("ann", "remember", text="The staging port is 8080")
    first.use("ann", "remember", text="The production port is 8443")
    first.use("ann", "remember", text="The staging port is 9000", kind="outcome")
    start().use("ann", "remember", text="The staging port is 1234")
    assert len(texts(first, "port")) == 3


def test_a_fact_of_the_workspace_is_not_superseded_by_one_that_later_sessions_cannot_see(
    start: Start,
) -> None:
    start().use("ann", "remember", text="The default branch is master", scope="workspace")
    second = start()
    second.use("ann", "remember", text="The default branch is main")
    assert texts(start(), "default branch") == ["The default branch is master"]
    second.use("ann", "remember", text="The default branch is trunk", scope="workspace")
    assert texts(start(), "default branch") == ["The default branch is trunk"]


def test_who_knew_the_old_answer_gets_the_one_that_replaces_it(start: Start) -> None:
    number = int(
        start().use("ann", "remember", text="Deploys happen on Friday", scope="workspace").split()[-1]
    )
    start().use("ann", "remember", text="Nobody deploys any more", replaces=number)
    assert texts(start(), "deploys") == ["Nobody deploys any more"]


def test_a_rule_of_a_person_is_never_superseded_by_an_agents_own_words(session: Session) -> None:
    for rule in ("All tests must pass.", "Always use port 8080."):
        session.do(lambda tx, rule=rule: facts.add_rule(tx, str(session.workspace), rule))
    session.use("ann", "remember", text="Always use port 9000.", kind="decision")
    assert session_rules(session.store, session.id) == ["All tests must pass.", "Always use port 8080."]


def test_rules_are_bounded_and_the_newest_stay(session: Session) -> None:
    for number in range(60):
        rule = f"Never do thing {number:03d} " + "x" * 200
        session.do(lambda tx, rule=rule: facts.add_rule(tx, str(session.workspace), rule))
    rules = session_rules(session.store, session.id)
    assert sum(map(len, rules)) <= 6_000
    assert "thing 059" in rules[-1]


def test_what_an_agent_is_told_of_the_session_is_what_holds_and_what_it_may_see(start: Start) -> None:
    earlier, session = start(), start()
    earlier.use("ann", "remember", text="The owner is Ann", scope="workspace")
    earlier.use("ann", "remember", text="Only for the earlier session")
    session.use("ann", "remember", text="The limit is 10 requests")
    session.use("bob", "remember", text="The limit is 20 requests")
    session.do(
        lambda tx: facts.add_fact(
            tx,
            agent_id=session.name("ann"),
            workspace=str(session.workspace),
            scope="agent",
            kind="fact",
            text="Mine alone",
            sources=[],
        )
    )

    def told(reader: str | None) -> list[str]:
        known = facts.current_facts(
            session.store,
            session.id,
            reader=session.name(reader) if reader else None,
            workspace=str(session.workspace),
        )
        return [fact.text for fact in known]

    assert told("bob") == told(None) == ["The owner is Ann", "The limit is 20 requests"]
    assert told("ann") == ["The owner is Ann", "The limit is 20 requests", "Mine alone"]
    session.do(
        lambda tx: tx.execute(
            "UPDATE agents SET copied_from = ? WHERE id = ?", (session.name("ann"), session.name("bob"))
        )
    )
    assert "Mine alone" in told("bob")


@pytest.mark.parametrize(
    "query",
    [
        "src/app/main.py",
        "harbour lights",
        "9f86d08",
        "监听端口",
        "getUserSessionById",
        "zürich",
    ],
)
def test_the_same_is_found_whether_the_index_holds_the_messages_or_not(session: Session, query: str) -> None:
    from watchkeeper.store import database

    said = [
        "call getUserSessionById in src/app/main.py",
        "the lights of the harbour in Zürich",
        "commit 9f86d081884c, 代理监听端口8443",
        "nothing of the sort",
    ]
    for text in said:
        session.say("ann", text)
    before = texts(session, query)
    connection = database.open_writable(session.store.path)
    assert index_of(connection).index_until(seconds=10)
    connection.close()
    assert before
    assert texts(session, query) == before


def test_words_of_another_session_in_between_are_not_found(start: Start) -> None:
    from watchkeeper.store import database

    first, second = start(), start()
    for number in range(3):
        first.say("ann", f"whale {number} of the first")
        second.say("ann", f"whale {number} of the second")
    connection = database.open_writable(first.store.path)
    assert index_of(connection).index_until(seconds=10)
    connection.close()
    assert len(texts(first, "whale")) == 3
    assert all("first" in text for text in texts(first, "whale"))


def test_a_tool_is_found_by_its_name(session: Session) -> None:
    call = {"type": "tool_use", "id": "t9", "name": "planReview", "input": {"text": "the first draft"}}
    pointer = session.say("ann", [call])
    session.do(
        lambda tx: tx.execute(
            "INSERT INTO tool_calls (id, session_id, agent_id, turn, position, seq, tool_use_id, name,"
            " idempotent, status) VALUES (1, ?, ?, 1, 0, ?, 't9', 'planReview', 1, 'done')",
            (session.id, session.name("ann"), int(pointer.rpartition("/")[2])),
        )
    )
    found = recall(session.store, session.id, "who called planReview?")
    assert [one.sources for one in found] == [(pointer,)]


def test_what_stands_word_for_word_deep_in_a_giant_message_is_found(session: Session) -> None:
    pointer = session.say("ann", "filler line\n" * 15_000 + "E-4711-kraken\n" + "filler line\n" * 15_000)
    for number in range(5):
        session.say("ann", f"E-{number} kraken")
    (first, *_) = recall(session.store, session.id, "E-4711-kraken")
    assert first.sources == (pointer,)
    assert "E-4711-kraken" in first.text
