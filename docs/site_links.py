"""A hook of mkdocs: the site has no page for files outside of `docs`, so it shows the text of such a link alone."""

from __future__ import annotations

import re
from typing import Any

_INLINE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")
_DEFINED = re.compile(r"^\[([^\]]+)\]: \.\./\S+\n", re.MULTILINE)
_BY_NAME = re.compile(r"\[([^\]]+)\]\[([^\]]+)\]")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without links that lead out of `docs`."""
    outside = set(_DEFINED.findall(markdown))
    markdown = _BY_NAME.sub(lambda link: link[1] if link[2] in outside else link[0], markdown)
    return _INLINE.sub(r"\1", _DEFINED.sub("", markdown))
