"""Logs that were renamed or moved since they were imported (Codex moves a thread's into its archive): the
same logs."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from watchkeeper.store import transcripts as rows
from watchkeeper.store.driver import Connection
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts import finding, lines, packed


class MovedLogs:
    """Logs that are no longer where they were when they were imported, by how they begin."""

    def __init__(self, writer: Writer, connection: Connection) -> None:
        self._writer = writer
        self._connection = connection
        self._gone: dict[str, str] = {}
        for path, head in rows.file_heads(connection):
            if not os.path.lexists(packed.packed_name(Path(path))):
                self._gone[head] = path
        self._sizes = {int(head.partition(":")[0]) for head in self._gone}

    def adopt(self, path: Path) -> rows.FileRow | None:
        """How far a log was read under its name before, which is this one from now on; None where it had
        none.

        Raises:
            OSError: it cannot be read.
        """
        if not self._gone:
            return None
        with packed.open_log(path, beginning=True) as file:
            head = file.read(lines.MARK_BYTES)
            marks = (
                f"{size}:{blake2b(head[:size], digest_size=12).hexdigest()}"
                for size in self._sizes
                if size <= len(head)
            )
            before = next((self._gone[mark] for mark in marks if mark in self._gone), None)
            row = rows.load_file(self._connection, before) if before is not None else None
            if row is None or not lines.still_holds(file, row.read_bytes, row.head_digest, row.tail_digest):
                return None
        now = finding.stored_path(path)
        self._writer.submit(lambda group: rows.move_file(group.connection, row, now)).result()
        del self._gone[row.head_digest]
        return rows.load_file(self._connection, now)
