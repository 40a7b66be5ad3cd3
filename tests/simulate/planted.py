"""Planted faults: each a change of one line of the program, which the simulation must find.

    python -m tests.simulate.planted              all of them, with at most 300 seeds each
    python -m tests.simulate.planted --only NAME  one

The list was written before the simulation was run against any of them, and its seeds are not weighted towards it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Planted:
    """One fault: in this file of the package, this text becomes that one."""

    name: str
    file: str
    old: str
    new: str


FAULTS = [
    Planted("no fence", "store/engine.py", "WHERE id = ?2 AND lease_epoch = ?3 RETURNING", "WHERE id = ?2 AND ?3 >= 0 RETURNING"),
    Planted("acknowledged, and not committed", "store/writer.py", '                connection.execute("COMMIT")\n',
            '                connection.execute("COMMIT" if self.commits % 40 != 39 else "ROLLBACK")\n'),
    Planted("running is not written", "agents/toolbox.py",
            "                await environment.store.commit(lambda tx: self._start(tx, call))\n", "                pass\n"),
    Planted("dependants are not stopped", "agents/session_tools.py",
            'plans.move(tx, other.id, TaskStatus.STALE, f"{task.name} runs again")', "pass"),
    Planted("a command raises", "runtime/commands.py", "            change = recorded.change\n            said = (\n",
            "            change = recorded.changes\n            said = (\n"),
    Planted("a budget is not reserved", "agents/limits.py", "                reserved += _amount(row, budget.kind)", "                reserved += 0"),
    Planted("a reservation is never freed", "agents/limits.py", "    def _release(self, number: str) -> None:\n",
            "    def _release(self, number: str) -> None:\n        return\n"),
    Planted("a view is published over a newer one", "memory/context.py", "        if prepared.epoch != self.epoch:\n", "        if False:\n"),
    Planted("results are delivered twice", "store/agents.py", '    still_open = " AND ended_at IS NULL" if open_only else ""\n',
            '    still_open = ""\n'),
    Planted("a lease is taken from a live host", "store/lease.py", "            if path in _held:\n                raise", "            if False:\n                raise"),
    Planted("undo to a view that does not fit", "memory/context.py", '        self._redo += left\n', '        self._redo += left[:0]\n'),
    Planted("a parked agent is not woken", "agents/limits.py", "        if waits:\n            self._alarm", "        if False:\n            self._alarm"),
    Planted("an answer is used for another question", "store/commands.py", "AND (q.id = ? OR (? = '' AND q.agent_id = ?))",
            "AND (q.id >= ? OR (? = '' AND q.agent_id = ?))"),
    Planted("an edited input is not run", "store/commands.py", "    if changed == 1 and edited is not None:\n", "    if False:\n"),
    Planted("a denial runs", "agents/approvals.py", "        if asked.status is not ApprovalStatus.APPROVED:\n",
            "        if asked.status not in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED):\n"),
    Planted("questions of a cancelled agent stay open", "store/agents.py", '    cancel_questions(tx, agent_id, f"the agent was {status}")\n', ""),
    Planted("calls of a cancelled agent stay open", "store/agents.py", "        now = ToolCallStatus.UNKNOWN if began else ToolCallStatus.CANCELLED\n",
            "        now = ToolCallStatus.RUNNING if began else ToolCallStatus.CANCELLED\n"),
    Planted("a cancelled agent goes on writing", "agents/calls.py", "    if status is None or status in AGENT_ENDED:", "    if status is None:"),
    Planted("a call that may not repeat runs again", "agents/calls.py", "    if not call.idempotent:\n", "    if False:\n"),
    Planted("mail is delivered twice", "store/plans.py", "for note in notes])\n    tx.event", "for note in notes[1:]])\n    tx.event"),
    Planted("a task begins before what it needs", "runtime/scheduler.py", "return task is not None and task.status in SATISFIED", "return task is not None"),
    Planted("a result on old inputs counts", "agents/agent_state.py",
            "    if task.status is TaskStatus.STALE or task.inputs_hash not in (None, used):", "    if False:"),
    Planted("inputs are not compared", "runtime/host.py", "again = plans.inputs_hash(inputs, task.instructions) != task.inputs_hash", "again = False"),
    Planted("the end over unread mail", "agents/session_tools.py", "        if plans.has_word_of_person(tx, context.agent_id):\n", "        if False:\n"),
    Planted("the end over open tasks", "agents/session_tools.py", "        if left:\n            named", "        if False:\n            named"),
    Planted("a resume leaves agents paused", "runtime/lifecycle.py", "        if agent.status is AgentStatus.PAUSED and not (",
            "        if agent.status is AgentStatus.WAITING and not ("),
    Planted("a failed command is told twice", "runtime/commands.py", "                raise ValueError(f\"the background process does not recognize the command {command.kind}\")",
            "                raise NotYet"),
    Planted("usage is counted twice", "store/transaction.py", "        fence.dirty = True\n        mine =", "        fence.dirty = calls = 2\n        mine ="),
    Planted("usage of cut calls is lost", "store/agents.py", "        if is_copied:  # by", "        if True:  # by"),
    Planted("a pause is lost in a crash", "runtime/lifecycle.py", "    agents.move(tx, agent_id, AgentStatus.PAUSED, reason)\n    task = plans",
            "    task = plans"),
    Planted("a worker's death counts as an error", "agents/toolbox.py", "                if call.name not in LOOKING:\n                    return await self._end(call, _to_verify(result)",
            "                if False:\n                    return await self._end(call, _to_verify(result)"),
    Planted("a loop is not stopped by a cancel", "runtime/host.py", "            if agent.status in AGENT_ENDED:\n                running.control.stop_now()",
            "            if agent.status in AGENT_ENDED:\n                pass"),
]  # fmt: skip


def planted_tree(fault: Planted, folder: Path) -> Path:
    """A copy of the tree with the fault in it."""
    for name in ("core", "tests"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
    path = folder / "core" / "watchkeeper" / fault.file
    path.write_text(planted_text(fault, path), "utf-8")
    return folder


def planted_text(fault: Planted, path: Path | None = None) -> str:
    """The file with the fault in it.

    Raises:
        ValueError: the code that the fault changes is not there, or not once.
    """
    text = (path or ROOT / "core" / "watchkeeper" / fault.file).read_text("utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its text is {text.count(fault.old)} times in {fault.file}")
    return text.replace(fault.old, fault.new)


def found_by(fault: Planted, seeds: int, start: int) -> tuple[int | None, str]:
    """After how many seeds the fault is found, and by what."""
    with tempfile.TemporaryDirectory() as name:
        folder = planted_tree(fault, Path(name))
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulate", "--seeds", str(seeds), "--start", str(start)],
            cwd=folder, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": f"{folder}:{folder / 'core'}", "PYTHONHASHSEED": "0"},
        )  # fmt: skip
    first = re.search(r"^seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    if first is None:
        return None, done.stderr[-300:] if done.returncode else ""
    return int(first[1]) - start + 1, first[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--start", type=int, default=1)
    options = parser.parse_args()
    tried = missed = 0
    for fault in FAULTS:
        if options.only and fault.name not in options.only:
            continue
        began = time.monotonic()
        after, how = found_by(fault, options.seeds, options.start)
        tried, missed = tried + 1, missed + (after is None)
        where = f"after {after} seeds" if after is not None else "NOT FOUND"
        print(f"{fault.name:42} {where:18} {time.monotonic() - began:5.0f} s  {how[:110]}", flush=True)
    print(f"{tried} faults tried, {missed} not found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
