"""A few of the kill trials beside peers (`trials.py` runs and counts them): ours pass; a peer's are sound
where it is installed."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = ("watchkeeper", "langgraph", "openai-agents")


@pytest.mark.parametrize("peer", PEERS)
def test_the_same_trial_runs_on_every_peer_and_ours_loses_and_repeats_nothing(peer: str) -> None:
    try:
        importlib.metadata.distribution(peer)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{peer} is not installed: pip install -e '.[peers]'")
    done = subprocess.run(
        [sys.executable, "-m", "tests.peers.trials", "--peer", peer, "--trials", "2"],
        capture_output=True, text=True, check=False, timeout=110, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2
    if peer == "watchkeeper":
        assert not any("lost" in line or "silently twice" in line for line in lines)
