"""Texts of models, tools and files as lines of pieces: Markdown, code, differences, data, tool calls.

Nothing here draws or reads. A renderer turns a text into lines that hold no character that a terminal would
obey or hide; `documents.LazyLines` makes those lines when they come in sight.
"""
