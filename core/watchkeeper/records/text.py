"""Making hostile text harmless: nothing that a model, a tool or a file says may steer a terminal or hide text."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC: title, clipboard, links
    r"|\x1b[PX^_][^\x1b\x9c]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HIDDEN = re.compile("[\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f\ufff9-\ufffb\u061c\u180e]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_SAFE = re.compile(r"[\n\t\x20-\x7e\xa1-\xac\xae-\u0300]*\Z")


def sanitize(text: str) -> str:
    """`text` without escape sequences, control characters (but newline and tab), bidi controls and zero-width characters."""
    if _SAFE.match(text):
        return text
    text = _SEQUENCES.sub("", text)
    text = _CONTROLS.sub("", text)
    text = _HIDDEN.sub("", text)
    return _SURROGATES.sub("\ufffd", text)
