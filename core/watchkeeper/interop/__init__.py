"""Doors to other programs: hooks of sessions that people start themselves, and an MCP server over the store."""
