"""A whole session in one file: Markdown and a web page to read, JSON to keep, to move and to import again.

Promises: rows are streamed, never held at once; secrets are taken out unless that was forbidden; nothing that
an agent, a tool or a file said becomes markup or script; and JSON → import → JSON gives the same document.
"""
