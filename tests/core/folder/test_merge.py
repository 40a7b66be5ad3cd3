"""Joining figures, and putting artifacts together by reference."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.agents.session_tools import expand_includes, merge_json


def test_numbers_add_lists_follow_objects_join_and_the_first_text_stays():
    assert merge_json(
        [
            {"n": 1, "l": [1], "o": {"a": 1}, "t": "x", "b": True, "z": None},
            {"n": 2.5, "l": [2], "o": {"a": 2, "b": 1}, "t": "y", "b": False, "z": 4},
        ]
    ) == {"n": 3.5, "l": [1, 2], "o": {"a": 3, "b": 1}, "t": "x", "b": True, "z": 4}
    assert merge_json([]) is None


@pytest.mark.parametrize(("one", "two"), [(1, []), ({}, []), ("a", 1), (True, 1)])
def test_values_of_different_kinds_are_refused(one, two):
    with pytest.raises(ValueError, match="Cannot join"):
        merge_json([{"x": one}, {"x": two}])


figures = st.fixed_dictionaries(
    {
        "totals": st.dictionaries(st.sampled_from("abc"), st.integers(0, 99)),
        "places": st.lists(st.integers(), max_size=4),
        "largest": st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)).map(list), max_size=8).map(
            lambda rows: {"$largest": 3, "by": 1, "items": rows}
        ),
    }
)


@given(st.lists(figures, min_size=1, max_size=6), st.integers(0, 5))
def test_joining_in_steps_is_joining_at_once_and_changes_nothing_given(values, cut):
    given_values = copy.deepcopy(values)
    at_once = merge_json([{"largest": {"$largest": 3, "by": 1, "items": []}}, *values])
    steps = merge_json(
        [merge_json([{"largest": {"$largest": 3, "by": 1, "items": []}}, *values[:cut]]), *values[cut:]]
    )
    assert at_once == steps
    assert values == given_values
    rows = [row for value in values for row in value["largest"]["items"]]
    assert [row[1] for row in at_once["largest"]["items"]] == sorted((row[1] for row in rows), reverse=True)[
        :3
    ]


STORE = {"figures": {"n": 2, "rows": [["b", 1], ["a", 10], ["a", 9]], "langs": {"z": 1, "a": 2}, "x/y": 5}}


def load(name):
    if name not in STORE:
        raise ValueError(f"there is no artifact {name!r}")
    return copy.deepcopy(STORE[name])


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ({"$artifact": "figures", "$pointer": "/n"}, 2),
        ({"$artifact": "figures", "$pointer": "/x~1y"}, 5),
        ({"$artifact": "figures", "$pointer": "/rows/1/0"}, "a"),
        ({"$artifact": "figures", "$pointer": "/no", "$default": []}, []),
        ({"$artifact": "figures", "$pointer": "/rows", "$sort": True, "$columns": ["p", "n"]},
         [{"p": "a", "n": 9}, {"p": "a", "n": 10}, {"p": "b", "n": 1}]),
        ({"$merge": [{"$artifact": "figures", "$pointer": "/n"}, 3]}, 5),
    ],
)  # fmt: skip
def test_an_include_is_replaced_by_what_it_names(include, expected):
    assert expand_includes({"deep": [include]}, load) == {"deep": [expected]}


def test_an_object_is_sorted_by_its_keys():
    value = expand_includes({"$artifact": "figures", "$pointer": "/langs", "$sort": True}, load)
    assert isinstance(value, dict)
    assert list(value) == ["a", "z"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"$artifact": "none"},
        {"$artifact": 3},
        {"$artifact": "figures", "$pointer": "/no"},
        {"$artifact": "figures", "extra": 1},
        {"$artifact": "figures", "$pointer": "/langs", "$columns": ["a"]},
        {"$merge": 3},
    ],
)
def test_an_include_that_cannot_be_replaced_is_refused(wrong):
    with pytest.raises(ValueError):  # noqa: PT011
        expand_includes([wrong], load)


def test_what_is_loaded_is_not_expanded_again():
    loaded = {"$artifact": "itself"}
    assert expand_includes({"x": {"$artifact": "itself"}}, lambda name: loaded) == {"x": loaded}
