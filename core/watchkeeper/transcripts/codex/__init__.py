"""Codex's logs: `~/.codex/sessions/<year>/<month>/<day>/rollout-*.jsonl`, one for each thread."""

from watchkeeper.transcripts.codex.program import Codex

PROGRAM = Codex()

__all__ = ["PROGRAM", "Codex"]
