"""What a person wrote for a database: a file or an address, never one for the other, and no password shown."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.__main__ import _without_password
from watchkeeper.records.errors import BadInput
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store.place import DatabaseUrl, absolute, file_of, folder_beside, place_of

SECRETS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF, exclude_categories=("Cs",)), min_size=6, max_size=20
)


@given(SECRETS, st.booleans())
def test_no_text_of_an_address_and_no_argument_holds_its_password(secret: str, in_query: bool) -> None:
    hidden = "Z9" + quote(secret, safe="")
    text = (
        f"postgresql://wk@db.example:5432/runs?sslmode=require&password={hidden}"
        if in_query
        else f"postgresql://wk:{hidden}@db.example:5432/runs?sslmode=require"
    )
    place = place_of(text)
    assert isinstance(place, DatabaseUrl)
    assert hidden not in f"{place} {place!r} {folder_beside(place)}"
    assert (place.holds_password, place.dsn) == (True, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCHKEEPER_DB", "")  # and put back afterwards
        shown = _without_password(["sessions", "--db", text, "--limit", "3", f"--db={text}"])
    assert shown == ["sessions", "--limit", "3"]


@pytest.mark.parametrize(
    "text",
    [
        "mysql://u@h/x", "redis://h", "http://h/x.db", "postgresql:/h/x", "postgresql://[::1/x",
        "postgres://h/\x07",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_one_line_and_no_file(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        place_of(text)
    assert str(refused.value).isprintable()


@given(
    st.text(min_size=1).filter(
        lambda text: "://" not in text and not text.startswith(("postgres:", "postgresql:"))
    )
)
def test_whatever_is_no_address_is_the_name_of_a_file(text: str) -> None:
    assert place_of(text) == Path(text)


def test_the_same_database_is_one_place_however_its_scheme_is_written() -> None:
    assert place_of("postgres://h/x") == place_of("POSTGRESQL://h/x")
    assert absolute(place_of("postgres://h/x")) == place_of("postgresql://h/x")
    assert str(place_of("postgresql:///x?host=/run/pg")) == "postgresql:///x?host=/run/pg"


def test_a_program_of_ones_own_names_a_server_as_the_commands_do() -> None:
    named = "postgresql://wk@db.example/runs"
    assert Runtime(named).path == Runtime(place_of(named)).path == place_of(named)
    assert Runtime("w.db").path == Path("w.db").absolute()


def test_what_only_files_have_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(BadInput, match="use `pg_dump`"):
        file_of(place_of("postgresql://h/x"), "backup", "use `pg_dump`")
