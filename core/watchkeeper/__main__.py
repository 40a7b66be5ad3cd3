"""`python -m watchkeeper`, `watchkeeper` and `wk`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Asking for the version loads nothing else."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from watchkeeper._version import __version__

        print(f"watchkeeper {__version__}")
        return
    from watchkeeper.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
