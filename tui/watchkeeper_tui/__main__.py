"""`python -m watchkeeper_tui DATABASE [SESSION]`: the dashboard alone, as `wk serve` starts it for each
browser."""

from __future__ import annotations

import sys
from pathlib import Path

from watchkeeper.records.process_secrets import receive

if __name__ == "__main__":
    receive()

    from watchkeeper_tui.app import run

    sys.exit(run(Path(sys.argv[1]), (sys.argv[2] if len(sys.argv) > 2 else "") or None))
