"""File names as text: any bytes a file system allows, shown on one harmless line and read back exactly.

A shown name is the UTF-8 text of the name, in which a backslash is doubled, a byte that is not UTF-8 or a
control character is `\\xNN`, and an invisible or direction-changing character is `\\uNNNN` (`\\UNNNNNNNN`
beyond the first plane).
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ESCAPE = re.compile(r"\\(?:\\|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def show(raw: bytes) -> str:
    """The name as printable text on one line; `unshow` gives the bytes back."""
    text = raw.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unshow(text: str) -> bytes:
    """The bytes of a shown name. A backslash that begins no escape stands for itself."""
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(text[end : match.start()].encode("utf-8", "surrogateescape"))
        byte, short, long = match.groups()
        if byte:
            parts.append(bytes.fromhex(byte))
        elif short or long:
            code = int(short or long, 16)
            # A code beyond Unicode, or half of a surrogate pair, names no character: it stays as it was
            # written.
            valid = code < 0x110000 and not 0xD800 <= code < 0xE000
            parts.append((chr(code) if valid else match.group()).encode())
        else:
            parts.append(b"\\")
        end = match.end()
    parts.append(text[end:].encode("utf-8", "surrogateescape"))
    return b"".join(parts)


def components(shown: str) -> tuple[bytes, ...]:
    """The names along a workspace path; empty for the workspace itself.

    Raises:
        ValueError: the path is absolute, climbs with `..`, or holds a NUL.
    """
    raw = unshow(shown)
    if raw.startswith(b"/"):
        raise ValueError(f"{shown!r} is absolute; give a path inside the workspace, such as '.' or 'src'.")
    names = tuple(name for name in raw.split(b"/") if name not in (b"", b"."))
    if b".." in names:
        raise ValueError(f"{shown!r} leaves the workspace; '..' is not allowed.")
    if b"\0" in raw:
        raise ValueError("A path cannot hold a NUL character.")
    return names


def folder_in(workspace: Path, names: tuple[bytes, ...]) -> bytes:
    """The real path of a folder of the workspace, links on the way resolved.

    Raises:
        ValueError: it is not there, is no folder, or a link on the way leads out of the workspace.
    """
    root = os.path.realpath(os.fsencode(workspace))
    real = os.path.realpath(os.path.join(root, *names))
    shown = show(b"/".join(names)) or "."
    if real != root and not real.startswith(root.rstrip(b"/") + b"/"):
        raise ValueError(f"{shown!r} leads out of the workspace through a link.")
    if not os.path.lexists(real):
        raise ValueError(f"There is no {shown!r} in the workspace.")
    if not os.path.isdir(real):
        raise ValueError(f"{shown!r} is not a folder; use `read` for a file.")
    return real
