"""A log as lines: nothing between two newlines is lost, however long, wherever reading begins."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.transcripts import files

PIECES = st.lists(
    st.sampled_from([b"", b"a", b"ab\r", b"\n", b"\n\n", b"0123456789", b"x" * 25, b"\0", b"\xc3\xa4"]),
    max_size=12,
)


@given(PIECES.map(b"".join), st.integers(0, 20))
def test_lines_are_what_stands_between_newlines(data: bytes, start: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "LONGEST_LINE", 12)
        patch.setattr(files, "KEPT_OF_LONGEST", 5)
        patch.setattr(files, "BUFFER_BYTES", 7)
        found = list(files.read_lines(io.BytesIO(data), start))
    wanted = data[start:].split(b"\n")
    last_has_no_end = wanted[-1] != b""
    if not last_has_no_end:
        wanted.pop()
    assert [line.data for line in found] == [each if len(each) <= 12 else each[:5] for each in wanted]
    assert [line.size for line in found] == [len(each) for each in wanted]
    seen = [line.ended for line in found]
    assert seen == [True] * (len(wanted) - last_has_no_end) + [False] * last_has_no_end
    place = start
    for line in found:
        place += line.size + line.ended
        assert line.end == place
