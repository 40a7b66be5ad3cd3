"""How a folder is divided among explorers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.models.surveyor.planner import Part, folder_part, grouped, task_names, to_split

sizes = st.lists(st.integers(0, 5_000), max_size=120)


def folders(files: list[int]) -> list[Part]:
    return [folder_part(".", f"dir{number:04}", one) for number, one in enumerate(files)]


@given(sizes, st.integers(2, 24))
def test_grouping_keeps_every_folder_once_and_in_order(files, most):
    parts = grouped([Part("."), *folders(files)], most)
    assert len(parts) <= most
    assert parts[0].loose
    assert sum(part.files for part in parts) == sum(files)
    assert sum(part.count for part in parts) == len(files)
    covered = [part for part in parts if not part.loose]
    for one, two in pairwise(covered):
        assert one.first <= one.last < two.first
    for part in covered:
        assert not part.names or part.names == tuple(
            f"dir{n:04}" for n in range(int(part.first[3:]), int(part.last[3:]) + 1)
        )


@given(sizes)
def test_few_folders_are_never_grouped(files):
    parts = folders(files[:24])
    assert grouped(parts, 24) == parts


@given(
    st.lists(
        st.sampled_from(["a b", "a-b", "a_b", "A.B", "日本", "synthesis", "\\xff", "x" * 300]), unique=True
    )
)
def test_task_names_are_short_plain_and_unique(paths):
    names = task_names([Part("."), *(folder_part(".", path, 1) for path in paths)])
    assert len({*names, "synthesis"}) == len(paths) + 2
    assert all(len(name) < 60 and name.isascii() for name in names)


def test_large_folders_are_divided_as_far_as_there_is_room():
    parts = folders([1_201, 50, 9_000, 3_000])
    assert to_split(parts, 24) == ["dir0002", "dir0003", "dir0000"]
    assert to_split(parts, 5) == []
    assert to_split(parts, 7) == ["dir0003"]


def test_a_part_survives_a_cursor():
    part = grouped(folders([1] * 30), 3)[1]
    assert Part.from_row(part.to_row()) == part
