"""`python -m watchkeeper`, `watchkeeper` and `wk`."""

from __future__ import annotations

import gc
import sys

INTERRUPTED_EXIT = 130


def main() -> None:
    """Run the command line. Asking for the version loads nothing else."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from watchkeeper._version import __version__

        print(f"watchkeeper {__version__}")
        return
    try:
        from watchkeeper.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # Ctrl+C while modules load: nothing has begun that could be saved
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED_EXIT
    gc.freeze()  # all that is left goes with the process: the interpreter need not look through it for rubbish first
    sys.exit(code)


if __name__ == "__main__":
    main()
