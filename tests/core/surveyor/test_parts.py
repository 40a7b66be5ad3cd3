"""How a folder is divided among explorers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.models.surveyor import Part, grouped, task_names, to_split, with_contents

sizes = st.lists(st.integers(0, 5_000), max_size=120)


def folders(files: list[int]) -> list[Part]:
    return [Part.folder(".", f"dir{number:04}", one) for number, one in enumerate(files)]


@given(sizes, st.integers(2, 24))
def test_grouping_keeps_every_folder_once_and_in_order(files, most):
    parts = grouped([Part("."), *folders(files)], most)
    assert len(parts) <= most
    assert parts[0].count == 0
    assert sum(part.files for part in parts) == sum(files)
    assert sum(part.count for part in parts) == len(files)
    covered = [part for part in parts if part.count]
    for one, two in pairwise(covered):
        assert one.first <= one.last < two.first
    for part in covered:
        assert not part.names or part.names == ", ".join(
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
    names = task_names([Part("."), *(Part.folder(".", path, 1) for path in paths)])
    assert len({*names, "synthesis"}) == len(paths) + 2
    assert all(len(name) < 60 and name.isascii() for name in names)


def test_large_folders_are_divided_as_far_as_there_is_room():
    parts = folders([1_201, 50, 9_000, 3_000])
    assert to_split(parts, 24) == "dir0002"
    assert to_split(parts, 7) == "dir0003"
    assert to_split(parts, 5) is None


@given(sizes, st.integers(1, 60))
def test_a_large_folder_gives_way_to_its_own_parts_however_its_pages_fall(files, page):
    parts = folders([10, 2_000, 10])
    inside = [Part.folder("dir0001", f"dir0001/{number:04}", one) for number, one in enumerate(files)]
    for start in range(0, max(1, len(inside)), page):
        parts = with_contents(parts, "dir0001", inside[start : start + page])
    assert [parts[0].first, parts[-1].first] == ["dir0000", "dir0002"]
    if not inside:
        assert to_split(parts, 24) is None
    else:
        assert parts[1] == Part("dir0001")
        assert len(parts) <= 9
        assert sum(part.count for part in parts[2:-1]) == len(inside)
