"""Doors to other programs: an MCP server over the store. Nothing but the command line imports this room."""
