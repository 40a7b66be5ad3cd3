"""OpenCode's sessions: the database `~/.local/share/opencode/opencode.db`, and the tree of JSON files it had
before."""

from watchkeeper.transcripts.opencode.program import OpenCode

PROGRAM = OpenCode()

__all__ = ["PROGRAM", "OpenCode"]
