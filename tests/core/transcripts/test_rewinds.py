"""A person goes back and says something else: what was taken back stays, marked, out of the context."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import Log, Store, call, text

from watchkeeper.cli.show import export


def _taken_back(store: Store) -> list[int]:
    (elided,) = store.all(
        "SELECT v.elided FROM views v JOIN agents a ON a.id = v.agent_id AND a.view_version = v.version"
    )
    return [each[0] for each in json.loads(elided[0])]


def _context(store: Store) -> int:
    return int(json.loads(store.one("SELECT composition FROM agents"))["messages"])


def _claude() -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(text("Which one?"), id="m1")
    log.user("The first " + "one " * 100)
    log.reply(call("Bash", "t1"), id="m2", stop="tool_use")
    log.result("t1")
    log.user("The second one", parent=log.records[1]["uuid"])
    log.reply(text("Mended."), id="m3")
    return log


def test_a_prompt_that_is_said_anew_takes_back_what_came_of_the_first(store: Store, logs: Path) -> None:
    log = _claude()
    store.run(log.write(logs))
    assert store.one("SELECT count(*) FROM messages") == 7
    assert _taken_back(store) == [3, 4, 5]
    assert _context(store) == sum(
        row[0] for row in store.all("SELECT tokens FROM messages WHERE seq NOT IN (3, 4, 5)")
    )
    assert store.one("SELECT count(*) FROM compactions") == 0
    assert store.one("SELECT model_calls FROM sessions") == 3
    rows = store.all("SELECT json_extract(data, '$.messages') FROM events WHERE kind = 'context.rewound'")
    assert rows == [(3,)]


def rewound_twice() -> Log:
    """One that was compacted after the second time."""
    log = _claude()
    log.user("The third one", parent=log.records[1]["uuid"])
    log.reply(text("Mended too."), id="m4")
    log.boundary()
    log.summary("All of it.")
    log.user("And on")
    return log


def test_what_was_taken_back_is_not_what_a_compaction_dropped(store: Store, logs: Path) -> None:
    store.run(rewound_twice().write(logs))
    assert store.all("SELECT high_water, messages_removed FROM compactions") == [(9, 4)]
    assert _taken_back(store) == []


def test_parallel_calls_take_nothing_back(store: Store, logs: Path) -> None:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Bash", "t1"), id="m1", stop=None)
    first = log.last
    log.reply(call("Bash", "t2"), id="m1", stop="tool_use")
    log.result("t1", parent=first)
    log.result("t2")
    log.user("Go on", parent=first)
    store.run(log.write(logs))
    assert store.one("SELECT count(*) FROM views") == 1


def test_turns_of_codex_that_were_rolled_back_are_taken_back(store: Store, logs: Path) -> None:
    log = (
        Rollout()
        .user("one")
        .says("a1")
        .tokens(100, 0, 5)
        .user("two")
        .call("c1")
        .output("c1")
        .tokens(200, 0, 5)
    )
    log.user("three").says("a3").tokens(300, 0, 5).event("thread_rolled_back", num_turns=2).user("four").says(
        "a4"
    )
    path = log.write(logs)
    store.run(path)
    gone = _taken_back(store)
    said = dict(store.all("SELECT seq, content FROM messages"))
    assert [word for seq in gone for word in ("two", "three", "a3") if f'"{word}"' in said[seq]] == [
        "two",
        "three",
        "a3",
    ]
    assert not any(f'"{word}"' in said[seq] for seq in gone for word in ("one", "a1", "four", "a4"))
    assert store.one("SELECT count(*) FROM raw_records WHERE kind LIKE '%rolled_back'") == 0
    before = store.counts()
    path.write_bytes(path.read_bytes() + b"\n")
    store.run(logs)
    assert store.counts() == before


def test_what_was_taken_back_is_marked_in_what_is_exported(store: Store, logs: Path, tmp_path: Path) -> None:
    store.run(_claude().write(logs))
    for form, mark in (("md", ", undone\n"), ("html", "1]")):
        file = tmp_path / f"session.{form}"
        found = CliRunner().invoke(
            export, ["last", "--db", str(store.path), "--format", form, "--output", str(file)]
        )
        assert found.exit_code == 0, found.output
        written = file.read_text()
        if form == "md":
            assert [line for line in written.splitlines() if line.endswith(mark.strip())] != []
            assert written.count(mark) == 3
        else:
            chunks = re.findall(
                r'<script type="application/json" class="chunk"[^>]*>(.*?)</script>', written, re.DOTALL
            )
            messages = [message for chunk in chunks for message in json.loads(chunk)]
            assert [message[0] for message in messages if message[5]] == [3, 4, 5]


def rolled_back() -> Rollout:
    """A turn that began before a compaction is taken back."""
    log = Rollout().user("one").says("a1").tokens(100, 0, 5)
    log.user("two").call("c1").output("c1").tokens(200, 0, 5)
    log.add("compacted", {"message": "All of it.", "replacement_history": []}).says("a2").tokens(50, 0, 5)
    return log.event("thread_rolled_back", num_turns=1).user("three").says("a3")


def test_a_turn_that_began_before_a_compaction_is_taken_back_with_it(store: Store, logs: Path) -> None:
    store.run(rolled_back().write(logs))
    # What is in the context now: the first turn as it was said, and the third.
    assert store.one("SELECT observations, verbatim_from FROM views ORDER BY version DESC LIMIT 1") == (
        "[]",
        1,
    )
    assert _taken_back(store) == [3, 4, 5, 6]
    assert _context(store) == sum(
        row[0] for row in store.all("SELECT tokens FROM messages WHERE seq NOT IN (3, 4, 5, 6)")
    )


def test_going_back_to_before_a_compaction_undoes_it(store: Store, logs: Path) -> None:
    log = _claude()
    log.boundary()
    log.summary("All of it.")
    log.user("And on")
    log.user("Not so", parent=log.records[1]["uuid"])
    store.run(log.write(logs))
    assert store.one("SELECT observations, verbatim_from FROM views ORDER BY version DESC LIMIT 1") == (
        "[]",
        1,
    )
    assert _taken_back(store) == [3, 4, 5, 6, 7, 8]


def test_a_chain_that_begins_anew_after_a_compaction_takes_nothing_back(store: Store, logs: Path) -> None:
    log = _claude()
    log.boundary()
    log.summary("All of it.")
    log.user("And on", parent=None)
    log.reply(text("Yes."), id="m5")
    store.run(log.write(logs))
    assert store.one("SELECT count(*) FROM events WHERE kind = 'context.rewound'") == 1
    assert store.one("SELECT verbatim_from FROM views ORDER BY version DESC LIMIT 1") == 8
    log.user("No, on like this", parent=None)
    store.run(log.write(logs))
    assert _taken_back(store) == [8, 9]
