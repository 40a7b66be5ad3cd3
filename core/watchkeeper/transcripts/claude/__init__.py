"""Claude Code's logs: `~/.claude/projects/<folder>/<session>.jsonl`, and those of its sub-agents."""

from watchkeeper.transcripts.claude.program import ClaudeCode

PROGRAM = ClaudeCode()

__all__ = ["PROGRAM", "ClaudeCode"]
