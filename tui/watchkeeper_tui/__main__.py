"""`python -m watchkeeper_tui DATABASE [SESSION]`: the dashboard alone, as `wk serve` starts it for each
browser. An empty DATABASE is that of `WATCHKEEPER_DB`."""

from __future__ import annotations

import sys

from watchkeeper.records.process_secrets import receive

if __name__ == "__main__":
    receive()

    from watchkeeper.store.database import default_place
    from watchkeeper.store.place import place_of
    from watchkeeper_tui.app import run

    place = place_of(sys.argv[1]) if sys.argv[1] else default_place()
    sys.exit(run(place, (sys.argv[2] if len(sys.argv) > 2 else "") or None))
