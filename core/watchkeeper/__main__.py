"""`python -m watchkeeper`, `watchkeeper` and `wk`."""

from __future__ import annotations

import gc
import os
import sys

INTERRUPTED_EXIT = 130
HOLDS_KEYS = frozenset(
    {
        "approve",
        "compact",
        "demo",
        "deny",
        "follow",
        "host",
        "redo",
        "rerun",
        "resume",
        "run",
        "serve",
        "steer",
        "undo",
        "watch",
    }
)
"""Commands that drive a run, start its host or stay beside it: a run's tools must not read keys from their
processes."""


def main() -> None:
    """Run the command line. Asking for the version loads nothing else."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from watchkeeper._version import __version__

        print(f"watchkeeper {__version__}")
        return
    # Modules are made of objects that last: looking through them for rubbish takes a tenth of a start.
    gc.set_threshold(20_000, 20, 20)
    try:
        _hide_keys(sys.argv[1:])
        from watchkeeper.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl+C while modules load: there is nothing to save yet
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED_EXIT
    except (OSError, ImportError, MemoryError) as error:  # the program cannot even be loaded
        if os.environ.get("WATCHKEEPER_DEBUG"):
            raise
        print(f"wk: {_explain(error)}", file=sys.stderr)
        code = 2
    # all that is left goes with the process: the interpreter need not look through it for rubbish first
    gc.freeze()
    sys.exit(code)


def _explain(error: OSError | ImportError | MemoryError) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    try:
        from watchkeeper.records.errors import explain_import, host_fault
    except (OSError, ImportError, MemoryError):  # this module is what could not be loaded
        return f"cannot load Watchkeeper: {said}"
    if (fault := host_fault(error)) is not None:
        return f"{fault}, then try again"
    if isinstance(error, ImportError):
        return explain_import(error)
    return f"Watchkeeper cannot be loaded: {said}"


def _hide_keys(arguments: list[str]) -> None:
    """Keep secret variables out of what other processes of this user can read of this one; may start the
    program again."""
    from watchkeeper.records import process_secrets

    shown = _without_password(arguments) if any("://" in word for word in arguments) else arguments
    if process_secrets.HANDOVER_VARIABLE in os.environ:
        process_secrets.receive()
    elif not arguments or arguments[0] in HOLDS_KEYS or shown != arguments:
        from watchkeeper.store.place import config_text

        try:
            process_secrets.restart_without_secrets(config_text(), shown)
        except process_secrets.HandoverFailed as failure:
            print(f"wk: {failure}", file=sys.stderr)
            sys.exit(2)


def _without_password(arguments: list[str]) -> list[str]:
    """The arguments without a `--db` whose address holds a password, which every user of the machine can read there:
    it goes on in `WATCHKEEPER_DB`."""
    from watchkeeper.records.errors import BadInput
    from watchkeeper.store.place import DatabaseUrl, place_of

    shown, words = [], iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        given = value if name == "--db" and equals else next(words, "") if word == "--db" else None
        try:
            place = place_of(given) if given else None
        except BadInput:
            place = None  # the command says what is wrong with it
        if isinstance(place, DatabaseUrl) and place.holds_password:
            os.environ["WATCHKEEPER_DB"] = place.dsn
        else:
            shown += [word] if given is None or equals else [word, given]
    return shown


if __name__ == "__main__":
    main()
