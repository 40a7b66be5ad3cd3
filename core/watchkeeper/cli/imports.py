"""`wk import` and `wk follow`: sessions of other programs, and exported sessions, imported read-only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli.help import Command
from watchkeeper.cli.options import clean, database_path, db_option, json_option, print_json, respond, say
from watchkeeper.models.registry import (
    imported_price,
    imported_price_apart,
    imported_window,
    imported_window_apart,
)
from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.records.readers import READERS, aliases, labels
from watchkeeper.records.text import duration_text
from watchkeeper.runtime.control import refuse_agents, user_name
from watchkeeper.store.place import Place, config_text, file_of

if TYPE_CHECKING:
    from watchkeeper.interop.guard import Guard
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.follow import Pace
    from watchkeeper.transcripts.importer import Progress, Report
    from watchkeeper.transcripts.records import Program


TICK_SECONDS = 0.1
SHOWN_UNREADABLE = 3
"""An import without --verbose says why it cannot read a file, for at most so many files."""
"""How often the progress line changes."""


@click.command(
    "import",
    cls=Command,
    examples=(
        "wk import claude # all of its sessions, read-only",
        "wk import --watch-all --install # continuously, in the background",
    ),
    help=f"""Import sessions from {labels()}, or a session written by `wk export`.

    PATH is a log, a folder of logs, or a file from `wk export --format json`. PROGRAM selects the default folders of a
    program: {", ".join(each.alias for each in READERS)}, or any program whose reader you have installed.
    Imported sessions are read-only. Importing again adds only new data, and continues an interrupted import.
    """,
)
@click.argument("what", metavar="PATH|PROGRAM", nargs=-1)
@click.option("--follow", is_flag=True, help="Keep importing new lines until interrupted.")
@click.option("--watch-all", is_flag=True, help="Import and then follow the logs of all known programs.")
@click.option(
    "--install", is_flag=True, help="With --watch-all: install it as a user service (systemd or launchd)."
)
@click.option(
    "--status", is_flag=True, help="With --watch-all: show whether it is running, and its progress."
)
@click.option("--uninstall", is_flag=True, help="With --watch-all: stop and remove the service.")
@click.option(
    "--verbose",
    is_flag=True,
    help="List hidden and skipped records by kind and reason.",
)
@db_option
@json_option
def import_(
    what: tuple[str, ...], follow: bool, watch_all: bool, install: bool, status: bool, uninstall: bool, verbose: bool,
    db: Place | None, as_json: bool,
) -> int:  # fmt: skip
    """Import what the arguments name."""
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.importer import Importer

    path = file_of(database_path(db), "import", "import into a file with --db FILE")
    if watch_all:
        if what or follow or verbose or install + status + uninstall > 1:
            raise BadInput("--watch-all allows only one of --install, --status and --uninstall")
        return (
            _service(path, as_json, install=install, uninstall=uninstall)
            if install or status or uninstall
            else _watch_all(path)
        )
    if install or status or uninstall:
        raise BadInput("--install, --status and --uninstall need --watch-all")
    if not what:
        raise BadInput(f"nothing to import; give a path, {aliases()}, or --watch-all")
    what = _import_exports(path, what, as_json)
    if not what:
        return 0
    places, only = wanted_places(what)
    writer = Writer(path)
    importer = Importer(
        writer,
        pricing=imported_price,
        windows=imported_window,
        user_id=user_name(),
        progress=_progress(as_json),
        only=only,
    )
    try:
        report = importer.run(places)
        _clear(as_json)
        if as_json:
            print_json(as_record(report))
        else:
            say(report.line())
            if verbose:
                _list(report)
            else:
                _list_unreadable(report, SHOWN_UNREADABLE)
        if follow:
            _follow(writer, places, only)
    except KeyboardInterrupt:
        importer.settle()
        _clear(as_json)
        if not as_json:
            say(
                "interrupted; imported data is kept. Run the same command to continue."
                f" {importer.report.line()}"
            )
        return 130
    finally:
        importer.close()
        writer.close()
    nothing = not (report.files or report.unchanged or report.deleted)
    return 1 if nothing and (report.left or report.unknown) else 0


@click.command(hidden=True)
@click.argument("what")
@click.option("--parent", type=int, required=True, help="Stop when this process is no longer the parent.")
@db_option
def follow(what: str, parent: int, db: Place | None) -> int:
    """Import new lines of the logs of WHAT as they are written. A program that has left none yet is waited for."""
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.follow import Pace

    stop = _stop_event()
    writer = Writer(database_path(db))
    guard = None
    with suppress(BadInput):  # the dashboard says what is wrong with the configuration
        guard = _guard(writer)
    with closing(writer), _hooks_read(writer, stop, guard):
        while not stop.is_set() and os.getppid() == parent:
            try:
                places, only = wanted_places((what,))
            except NotFound:
                stop.wait(FIRST_LOG_SECONDS)
                continue
            _follow_places(writer, places, only, stop, lambda: os.getppid() == parent, Pace())
            break
    return 0


FIRST_LOG_SECONDS = 0.5
"""How often the first log of a program is looked for."""


def _follow(writer: Writer, places: list[Path], only: Program | None) -> None:
    """Import new lines as they are written, until SIGINT or SIGTERM."""
    from watchkeeper.transcripts.follow import Pace

    stop = _stop_event()
    with _hooks_read(writer, stop, _guard(writer)):
        _follow_places(writer, places, only, stop, lambda: True, Pace())


def _stop_event() -> threading.Event:
    """An event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _guard(writer: Writer) -> Guard | None:
    """What looks for caps that sessions reached, and sends alerts; None where the configuration has neither: this process may
    run all day, and then it needs no more than a reader of TOML.

    Raises:
        BadInput: the configuration cannot be used; the line says why.
    """
    import tomllib

    from watchkeeper.store.place import user_redactor

    with suppress(tomllib.TOMLDecodeError):  # loading it says what is wrong
        if not {"guard", "alerts"} & tomllib.loads(config_text()).keys():
            return None
    from watchkeeper.interop.guard import Guard
    from watchkeeper.runtime.config import load_config

    config = load_config()
    return Guard(writer, config.guard.caps, config.alerts, user_redactor())


@contextmanager
def _hooks_read(writer: Writer, stop: threading.Event, guard: Guard | None) -> Iterator[None]:
    """A thread that reads what hooks wrote (`wk hooks`), until the block ends."""
    from watchkeeper.interop.hook_spool import HookSpool
    from watchkeeper.store.place import user_redactor

    spool = HookSpool(writer, user_redactor(), guard=guard)
    reader = threading.Thread(target=spool.run, args=(stop,), name="hooks", daemon=True)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join(5)


def _follow_places(
    writer: Writer, places: list[Path], only: Program | None, stop: threading.Event, go_on: Callable[[], bool], pace: Pace
) -> None:  # fmt: skip
    from watchkeeper.transcripts.follow import BACKGROUND, Follower
    from watchkeeper.transcripts.importer import Importer

    apart = pace is BACKGROUND
    importer = Importer(
        writer, pricing=imported_price_apart if apart else imported_price,
        windows=imported_window_apart if apart else imported_window, user_id=user_name(), live=True, only=only,
    )  # fmt: skip
    try:
        Follower(writer, importer, places, go_on=go_on, pace=pace).run(stop)
    finally:
        importer.close()


PLACES_SECONDS = 30.0
"""How often the service looks for programs that were installed meanwhile."""


def _watch_all(path: Path) -> int:
    """Import all logs of all known programs, and follow them, until SIGINT or SIGTERM."""
    from watchkeeper.interop import service
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.follow import BACKGROUND

    stop = _stop_event()
    home = Path.home()
    writer = Writer(path)
    with service.FollowerLock(path), closing(writer), _hooks_read(writer, stop, _guard(writer)):
        while not stop.is_set():
            found = service.places(os.environ, home)
            if not found:
                stop.wait(PLACES_SECONDS)
                continue
            looked_at = time.monotonic()

            def unchanged() -> bool:
                nonlocal looked_at
                if time.monotonic() - looked_at < PLACES_SECONDS:
                    return True
                looked_at = time.monotonic()
                return service.places(os.environ, home) == found  # noqa: B023 - called within this turn of the loop

            # What is there already is imported by a process of its own, whose memory goes with it.
            with _importing(path, found):
                _follow_places(writer, found, None, stop, unchanged, BACKGROUND)
    return 0


@contextmanager
def _importing(path: Path, places: list[Path]) -> Iterator[None]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "watchkeeper",
        "import",
        *map(str, places),
        "--json",
        "--db",
        str(path),
    ]
    with handed_over(config_text()) as handover:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=handover.environment,
            pass_fds=handover.descriptors,
        )
    waiting = threading.Thread(target=child.wait, daemon=True)  # no zombie stays
    waiting.start()
    try:
        yield
    finally:
        if child.poll() is None:
            child.terminate()
        waiting.join(10)


def _service(path: Path, as_json: bool, *, install: bool, uninstall: bool) -> int:
    from watchkeeper.interop import service

    if install or uninstall:
        refuse_agents()
    if install:
        unit = service.install(path, os.environ, Path.home())
        return respond(
            as_json,
            {"installed": str(unit)},
            f"installed {unit}; the service is running and will start at each login",
        )
    if uninstall:
        unit = service.uninstall(os.environ, Path.home())
        return respond(as_json, {"uninstalled": str(unit)}, f"stopped the service and removed {unit}")
    far = service.progress(path, os.environ, Path.home())
    value = {
        "running": far.pid is not None,
        "pid": far.pid,
        "installed": far.is_installed,
        "logs": far.logs,
        "current": far.current,
        "pending_bytes": far.pending_bytes,
    }
    return respond(as_json, value, far.line())


def _import_exports(path: Path, what: tuple[str, ...], as_json: bool) -> tuple[str, ...]:
    """Import the files of `wk export --format json` among what is named; returns the rest."""
    from watchkeeper.transcripts.files import is_export

    others: list[str] = []
    for name in what:
        file = Path(name).expanduser()
        if not is_export(file):
            others.append(name)
            continue
        from watchkeeper.transcripts.export.document import import_export  # late: it takes 40 ms to load

        found = import_export(path, file)
        if as_json:
            print_json(
                {
                    "type": "import",
                    "session": found.session_id,
                    "already_there": found.already_there,
                    "messages": found.messages,
                }
            )
        elif found.deleted:
            say(
                f"session {found.session_id} already exists but is deleted; `wk delete --restore {found.session_id}`"
                " restores it"
            )
        elif found.already_there:
            say(f"session {found.session_id} already exists; nothing imported")
        else:
            say(
                f"session {found.session_id} imported: {found.messages:,} messages, {found.rows:,} rows"
                " in total"
            )
    return tuple(others)


def wanted_places(what: tuple[str, ...]) -> tuple[list[Path], Program | None]:
    """The files and folders to read, and the only program whose logs count, if one was named.

    Raises:
        NotFound: no such file or folder, or the program has left no logs.
    """
    from watchkeeper.transcripts.reading import by_name, programs

    places: list[Path] = []
    only: Program | None = None
    for name in what:
        path = Path(name).expanduser()
        program = by_name(name) if not path.exists() else None
        if program is not None:
            usual = program.places(os.environ, Path.home())
            found = [place for place in usual if place.exists()]
            if not found:
                _refuse_files_of_json(usual[0].parent)
                looked = " or ".join(str(place) for place in usual)
                raise NotFound(
                    f"no {program.label} logs in {looked}; specify a file or folder: wk import PATH"
                )
            places += found
            if len(what) == 1:
                only = program
        elif not name or not (path.exists() or path.is_symlink()):
            known = ", ".join(each.alias for each in programs())
            shown = clean(name, 200) or "''"
            raise NotFound(f"no such file or folder: {shown}; give a path or a program ({known})")
        else:
            _refuse_files_of_json(path)
            places.append(path)
    if not places:
        raise BadInput("nothing to import; specify a file, a folder or a program")
    return places, only


def _refuse_files_of_json(path: Path) -> None:
    """OpenCode before 1.2 kept its sessions as files below `storage`."""
    storage = next((each for each in (path, *path.parents) if each.name == "storage"), path / "storage")
    if (storage / "session").is_dir() and not any(storage.parent.glob("opencode*.db")):
        raise BadInput(
            f"{clean(storage, 200)}: OpenCode's JSON files are no longer supported. Start a current OpenCode once"
            " to migrate them to its database, then import again"
        )


def as_record(report: Report) -> dict[str, Any]:
    """The result of an import, as `--json` prints it."""
    return {
        "type": "import",
        "files": report.files,
        "unchanged": report.unchanged,
        "deleted": report.deleted,
        "sessions": sorted(report.sessions),
        "read": report.read,
        "raw": [
            {"kind": kind, "reason": reason, "lines": count}
            for (kind, reason), count in report.raw.most_common()
        ],
        "skipped": dict(report.skipped.most_common()),
        "changed": report.changed,
        "waiting": report.waiting,
        "lines": report.lines,
        "bytes": report.bytes_read,
        "seconds": round(report.seconds, 3),
        "unreadable": dict(report.left),
        "unknown": list(report.unknown),
    }


def _progress(as_json: bool) -> Callable[[Progress], None] | None:
    """A function that shows files, speed and time left on standard error, if that is a terminal."""
    if as_json or not sys.stderr.isatty():
        return None
    shown = [0.0]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if now - shown[0] < TICK_SECONDS:
            return
        shown[0] = now
        speed = progress.bytes_done / progress.seconds / 1e6 if progress.seconds > 0 else 0.0
        left = progress.seconds_left
        text = (
            f"{progress.files_done:,}/{progress.files:,} files "
            f" {progress.bytes_done / 1e6:,.0f}/{progress.bytes / 1e6:,.0f} MB"
            f"  {speed:,.0f} MB/s" + (f"  {duration_text(left)} left" if left is not None else "")
        )
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()

    return show


def _clear(as_json: bool) -> None:
    if not as_json and sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def _list(report: Report) -> None:
    for (kind, reason), count in report.raw.most_common():
        say(f"  kept but hidden    {count:>8,}  {clean(kind, 80)}: {reason}")
    for reason, count in report.skipped.most_common():
        say(f"  skipped            {count:>8,}  {reason}")
    _list_unreadable(report, max(len(report.left), len(report.unknown)))


def _list_unreadable(report: Report, most: int) -> None:
    for name in report.unknown[:most]:
        say(f"  not a supported log  {clean(name, 300)}")
    for name, reason in islice(report.left.items(), most):
        say(f"  unreadable  {clean(name, 300)}: {reason}")
    if len(report.left) > most:
        say(f"  {len(report.left) - most:,} more unreadable; --verbose lists them")
