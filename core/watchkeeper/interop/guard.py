"""Watches sessions of other programs for the user's caps (`[guard]`), and usage windows for what is left of them.

The process that reads hooks looks about once a second (`HookSpool`). A cap that is reached is said once, as an event of the
session and as an alert. While it is reached, a file in the folder `guard` holds the answer with which the session's hook denies
its next agent (`interop.hooks`, `guard.sh`). What the hook denied becomes an event, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from watchkeeper.records.text import one_line
from watchkeeper.runtime.background import AlertSender, quota_alert
from watchkeeper.runtime.config import AlertSettings
from watchkeeper.store import guard, quota
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.external import hooks_folder
from watchkeeper.store.guard import Caps, Finding, Session
from watchkeeper.store.writer import Writer

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0
"""How often a session is looked at of which nothing was imported meanwhile: the cost of the last hour passes."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")


def denial(found: Iterable[Finding]) -> str:
    """What a hook answers to deny an agent, with the reason; the session's model reads it."""
    reason = "; ".join(each.text for each in found)
    text = f"Watchkeeper denies this agent: {reason}. A person set this cap. Continue without more agents, or stop and report it."
    answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": text}
    return json.dumps({"hookSpecificOutput": answer})


class Guard:
    """Looks for one database, from one thread.

    Args:
        redact: takes secrets out of what is kept and sent.
        send: sends one alert, without making the caller wait.
    """

    def __init__(
        self,
        writer: Writer,
        caps: Caps,
        alerts: AlertSettings,
        redact: Callable[[Any], Any],
        *,
        send: Callable[[dict[str, Any]], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._writer, self._caps, self._alerts, self._redact, self._now = writer, caps, alerts, redact, now
        self._send = send or _in_background(alerts)
        self._folder = hooks_folder(writer.path) / "guard"
        self._said: dict[str, set[tuple[str, str]]] = {}
        self._known: dict[str, tuple[tuple[Any, ...], float, list[Finding]]] = {}
        self._denied: dict[str, str] = {}
        """What the files hold, by the program's id of each session."""
        self._swept = False

    @property
    def _sends(self) -> bool:
        return bool(self._alerts.command or self._alerts.webhook)

    def look(self, connection: Connection) -> None:
        """Look once. `connection` only reads."""
        now = self._now()
        if self._sends and "quota" in self._alerts.on:
            for due in quota.due_alerts(Queries(connection), now):
                if self._in_transaction(partial(_take_alert, due=due)):
                    self._alert(quota_alert(due, None, now))
        if not self._caps:
            self._deny({})
            return
        denied = {}
        for session in guard.outside_sessions(connection, now):
            found = self._found(connection, session, now)
            self._say(connection, session, found, now)
            reached = [each for each in found if each.is_reached]
            if reached and _ID.fullmatch(session.program_session):
                denied[session.program_session] = denial(reached)
        self._deny(denied)

    def _found(self, connection: Connection, session: Session, now: float) -> list[Finding]:
        """What it has reached; asked again where something was imported, or some time has passed."""
        known = self._known.get(session.id)
        if known is None or known[0] != session.mark or not 0 <= now - known[1] < AGAIN_SECONDS:
            known = session.mark, now, list(guard.findings(connection, session.id, self._caps, now))
            self._known[session.id] = known
        return known[2]

    def _say(self, connection: Connection, session: Session, found: list[Finding], now: float) -> None:
        """Each cap once: as an event, and as an alert."""
        if not found:
            return
        if session.id not in self._said:
            self._said[session.id] = guard.said_caps(connection, session.id)
        for each in found:
            kind = "guard.reached" if each.is_reached else "guard.unknown"
            if (kind, each.cap) in self._said[session.id]:
                continue
            text = self._redact(one_line(each.text, 400))
            self._in_transaction(
                partial(guard.add_finding, session_id=session.id, at=now, found=each, text=text)
            )
            self._said[session.id].add((kind, each.cap))
            if self._sends and "cap" in self._alerts.on:
                self._alert({
                    "why": "cap", "event": kind, "session_id": session.id, "title": one_line(session.title, 200), "agent": None,
                    "task": None, "text": text, "usage_limit": None, "at": now, "look": f"wk watch {session.id}",
                })  # fmt: skip

    def _alert(self, alert: dict[str, Any]) -> None:
        self._send(self._redact(alert))

    def _in_transaction(self, work: Callable[[Connection], object]) -> bool:
        return bool(self._writer.submit(lambda group: work(group.connection)).result())

    def _deny(self, denied: dict[str, str]) -> None:
        """Let the files say this, and nothing else."""
        if not self._folder.parent.is_dir():
            return
        if not self._swept:  # what another process left
            self._swept = True
            with contextlib.suppress(OSError):
                self._denied |= {each.name: "" for each in self._folder.iterdir()}
        if denied == self._denied:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for name, text in denied.items():
                if self._denied.get(name) != text:
                    _replace(self._folder / name, text)
            for name in self._denied.keys() - denied.keys():
                (self._folder / name).unlink(missing_ok=True)
            self._denied = denied


def _take_alert(connection: Connection, due: quota.DueAlert) -> bool:
    return quota.take_alert(lambda sql, parameters: int(connection.execute(sql, parameters).rowcount), due)


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent.parent, prefix=".guard.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)


def _in_background(alerts: AlertSettings) -> Callable[[dict[str, Any]], None]:
    """Send each alert in a thread of its own: a command may take half a minute."""

    def deliver(alert: dict[str, Any]) -> None:
        if problem := asyncio.run(AlertSender(alerts).deliver(alert)):
            log.warning("an alert was not delivered: %s", problem)

    def send(alert: dict[str, Any]) -> None:
        threading.Thread(target=deliver, args=(alert,), name="watchkeeper-alert", daemon=True).start()

    return send
