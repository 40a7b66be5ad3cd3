"""`Runtime`: durable sessions inside a program of one's own."""

from __future__ import annotations

import os
import socket
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

from watchkeeper.models.registry import SURVEYOR
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import Model
from watchkeeper.records.ports import Clock, IdSource, SystemClock, random_id
from watchkeeper.runtime import control
from watchkeeper.runtime.continuation import carry
from watchkeeper.runtime.control import check_configuration
from watchkeeper.runtime.host import HostResult, SessionHost
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import database, state
from watchkeeper.store.driver import Queries, sqlite3
from watchkeeper.store.place import Place, absolute, place_of
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.user_secrets import user_redactor


class Runtime:
    """Starts and drives sessions in one database: by default that of `wk`, else a file or an address
    (`postgresql://…`). A file must not be in the workspace of a session.

    `model` replaces every model reference of a session: any object with `ref`, `context_window` and
    `stream` (see `watchkeeper.records.messages.Model`). Without one, references such as `anthropic/<model>` are
    resolved.

    ```python
    runtime = Runtime()
    session = runtime.start("Survey this folder", workspace=".", model="offline/surveyor")
    result = await runtime.run(session)
    ```
    """

    def __init__(
        self,
        database_path: str | Place | None = None,
        *,
        model: Model | None = None,
        clock: Clock | None = None,
        new_id: IdSource = random_id,
    ) -> None:
        if isinstance(database_path, str | Path) and database_path:
            database_path = absolute(place_of(database_path))
        self.path: Place = database_path or database.default_place()
        self._model = model
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self.hosts: dict[str, SessionHost] = {}
        """The hosts that run now, by session."""

    def start(
        self,
        goal: str,
        *,
        workspace: str | Path,
        model: str | None = None,
        settings: SessionSettings | None = None,
        budgets: dict[str, float] | None = None,
        from_session: str | None = None,
    ) -> str:
        """Write a session's row; returns its id. Nothing runs before `run`.

        `from_session`: a session to continue. The new planner gets its plan, its facts and its last
        observations.

        Raises:
            BadInput: no model is chosen, the configuration is damaged, the workspace is no folder or contains
                the database, or a budget makes no sense.
            NotFound: there is no session to carry on.
        """
        config = check_configuration(Path(workspace))
        ref = model or (self._model.ref if self._model else config.model)
        if ref is None or (not model and ref.strip() == SURVEYOR):
            raise BadInput(
                "no model is chosen; pass one, as in model='anthropic/<model>', or set `model` in config.toml"
            )
        wanted = NewSession(goal, Path(workspace), ref, settings or SessionSettings(), budgets or {})
        prepare = None
        if from_session is not None:
            prepare = carry(self.path, from_session, redact=user_redactor()).write
        return create_session(self.path, wanted, new_id=self._new_id, now=self._clock.now(), prepare=prepare)

    async def run(self, session_id: str, *, resume: bool = True, once: int | None = None) -> HostResult:
        """Drive a session until it ends or pauses; run it again to carry on.

        Raises:
            DrivenElsewhere: another host drives it.
            LeaseLost: another host took it over meanwhile.
            HostFault: the machine ran out of something that the host itself needs; run the session again to
                carry on.
        """
        from watchkeeper.runtime.host_factory import assemble
        from watchkeeper.runtime.run_session import note_host_fault

        store = SessionStore.claim(
            self.path, session_id, self._clock, pid=os.getpid(), host_name=socket.gethostname()
        )
        try:
            made = await assemble(store, self._clock, once=once, model=self._model, new_id=self._new_id)
            async with aclosing(made):
                self.hosts[session_id] = made.host
                return await made.host.run(resume=resume)
        except Exception as error:
            note_host_fault(store, error)
            raise
        finally:
            self.hosts.pop(session_id, None)
            store.close()

    def submit(self, session_id: str, kind: str, **about: Any) -> int:
        """Queue a control command (`pause`, `steer`, `rerun`, …); see
        `watchkeeper.runtime.control.submit`."""
        return control.submit(self.path, session_id, kind, requested_by="program", **about)

    def state(self, session_id: str) -> dict[str, Any]:
        """The whole state of a session, from the file alone."""
        with closing(database.open_readonly(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            return state.session_state(Queries(connection), session_id)
