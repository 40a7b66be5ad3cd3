"""The history checker: what hosts were told, held against what the database holds in the end.

A test that kills, stops or cuts off hosts runs them with `recorded(folder)` in their environment. Afterwards
`violations` reads what every process recorded, and the database:

- no acknowledgement is revoked: each event of an acknowledged commit is there;
- each event number was acknowledged to one commit at most, and events have no gap;
- one epoch writes at a time: epochs do not fall as event numbers grow, and after a claim is known no commit of an
  earlier epoch succeeds that began later;
- no epoch was claimed twice;
- effects do not exceed intents: no tool call has run more often outside than the database says.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from watchkeeper.store import database, transaction
from watchkeeper.store.place import Place

RECORDER = Path(__file__).parent / "recording"
FOLDER = "WATCHKEEPER_TEST_HISTORY"
"""The variable that names the folder."""


def recorded(folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which processes record their history in the folder."""
    folder.mkdir(exist_ok=True)
    roots = [str(RECORDER), *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(roots)}


def record_into(folder: Path | None) -> None:
    """Let the processes that are forked from this one record in the folder; None: nowhere. See `record_here`."""
    os.environ.pop(FOLDER, None)
    if folder is not None:
        folder.mkdir(exist_ok=True)
        os.environ[FOLDER] = str(folder)


def record_here() -> None:
    """Let this process, which may have imported the program already, and those that are forked from it record."""
    spec = importlib.util.spec_from_file_location("watchkeeper_recorder", RECORDER / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)
    recorder.watch(transaction)


def read(folder: Path) -> list[dict[str, Any]]:
    """All that was recorded. A line that a kill cut off was not acknowledged to anybody."""
    found = []
    for path in sorted(folder.iterdir()):
        for line in path.read_text("utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def violations(folder: Path, place: Place, effects: Sequence[str] = ()) -> list[str]:
    """What contradicts the promises; empty where all hold.

    Args:
        effects: for each effect that was seen outside, the id of the tool use that asked for it.
    """
    history = read(folder)
    with closing(database.open_readonly(place)) as connection:
        seqs: dict[str, list[int]] = {}
        for session_id, seq in connection.execute(
            "SELECT session_id, seq FROM events ORDER BY session_id, seq"
        ):
            seqs.setdefault(session_id, []).append(seq)
        last = dict(tuple(row) for row in connection.execute("SELECT id, event_seq FROM sessions").fetchall())
        runs: Counter[str] = Counter()
        for use_id, count in connection.execute("SELECT tool_use_id, runs FROM tool_calls"):
            runs[use_id] += count
    found = [] if history else ["nothing was recorded"]
    for session_id, numbers in seqs.items():
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"{session_id}: the events have a gap")
        if last[session_id] != len(numbers):
            found.append(f"{session_id}: {len(numbers)} events, and {last[session_id]} were counted")
    for session_id in sorted({one["session"] for one in history}):
        mine = [one for one in history if one["session"] == session_id]
        found += (f"{session_id}: {what}" for what in _of_session(mine, set(seqs.get(session_id, ()))))
    found += [
        f"the effect of {use_id} was seen {count} times, and it ran {runs[use_id]} times"
        for use_id, count in Counter(effects).items()
        if count > runs[use_id]
    ]
    return found


def _of_session(history: list[dict[str, Any]], seqs: set[int]) -> Iterator[str]:
    commits = [one for one in history if one["op"] == "commit"]
    claims = [one for one in history if one["op"] == "claim"]
    owner: dict[int, dict[str, Any]] = {}
    for commit in commits:
        for seq in range(commit["first"], commit["last"] + 1):
            if seq not in seqs:
                yield f"event {seq} was acknowledged to epoch {commit['epoch']}, and is gone"
            if seq in owner:
                yield f"event {seq} was acknowledged to epochs {owner[seq]['epoch']} and {commit['epoch']}"
            owner[seq] = commit
    epochs = [owner[seq]["epoch"] for seq in sorted(owner)]
    if epochs != sorted(epochs):
        yield "an earlier epoch wrote after a later one"
    for claim in claims:
        late = [one for one in commits if one["epoch"] < claim["epoch"] and one["asked"] > claim["known"]]
        if late:
            yield f"epoch {late[0]['epoch']} committed after epoch {claim['epoch']} had claimed the session"
    for epoch, count in Counter(claim["epoch"] for claim in claims).items():
        if count > 1:
            yield f"epoch {epoch} was claimed {count} times"
