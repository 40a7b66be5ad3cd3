"""What the crash matrix kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from tests.support.postgres import FolderDatabases

from watchkeeper.store.place import Place


class Scene:
    """One kind of work that may be killed. `work` is begun again, in a new process, until it ends by
    itself."""

    name: str
    random = True
    """Whether it is worth kills at random moments too."""
    on_server = False
    """Whether it is a scene on PostgreSQL, too."""
    has_hosts = False
    """Whether hosts write in it, whose history is recorded and checked."""
    file = "run.db"
    databases: ClassVar[FolderDatabases | None] = None
    """Those of the server on which the scenes happen; None: in files."""

    def place(self, folder: Path) -> Place:
        """The database of a trial's folder."""
        return folder / self.file if self.databases is None else self.databases.of(folder)

    def prepare(self, folder: Path) -> None:
        """Make what the work starts from."""

    def work(self, folder: Path) -> int:
        """Do the work, or go on with it; returns an exit code. Runs in a process of its own."""
        raise NotImplementedError

    def look(self, folder: Path) -> Any:
        """The end state of an undisturbed run, to judge by."""
        raise NotImplementedError

    def judge(self, reference: Any, folder: Path) -> list[str]:
        """What is wrong with the end state."""
        found = self.look(folder)
        return [] if found == reference else [_difference(found, reference)]


def _difference(found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
        return "; ".join(f"{key}: {_difference(found.get(key), wanted.get(key))}" for key in keys)[:1000]
    if isinstance(found, tuple | list) and isinstance(wanted, tuple | list) and len(found) == len(wanted):
        return "; ".join(
            _difference(one, other) for one, other in zip(found, wanted, strict=True) if one != other
        )[:1000]
    return f"{str(found)[:300]} instead of {str(wanted)[:300]}"
