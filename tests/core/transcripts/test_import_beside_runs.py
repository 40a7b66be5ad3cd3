"""An import leaves the write lock to runs beside it."""

from __future__ import annotations

from pathlib import Path

from tests.core.transcripts.conftest import Log, Store, dollar_a_token, text

from watchkeeper.records.messages import Cost
from watchkeeper.store import database, driver
from watchkeeper.transcripts.importer import Importer
from watchkeeper.transcripts.records import ModelCall


def test_prices_are_loaded_while_the_write_lock_is_free(store: Store, logs: Path) -> None:
    log = Log()
    log.user("Mend the cache")
    log.reply(text("Done."), id="msg_1")
    log.write(logs)
    other = database.open_writable(store.path)
    first: list[bool] = []

    def pricing(each: ModelCall) -> Cost:
        if not first:  # the slow one: a library is imported, and its data read
            driver.begin_immediate(other, timeout_seconds=0)
            other.execute("ROLLBACK")
            first.append(True)
        return dollar_a_token(each)

    importer = Importer(store.writer, pricing=pricing)
    report = importer.run([logs])
    importer.close()
    other.close()
    assert first
    assert not report.left
    assert store.one("SELECT cost_usd FROM sessions") == 13.0
