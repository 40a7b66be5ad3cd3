"""The mutants are of what is there now, and the tests notice one."""

from __future__ import annotations

import json

from tests.faults import mutants


def test_every_subject_is_found_and_its_mutants_are_programs() -> None:
    """Every twelfth mutant of each subject, and the first."""
    for subject in mutants.SUBJECTS:
        for mutant in list(mutants.mutants_of(subject))[::12]:
            source = (mutants.ROOT / mutant.path).read_bytes()
            assert mutant.apply(source) != source
            compile(mutant.apply(source), mutant.path, "exec")
    assert [test for test in mutants.TESTS if not (mutants.ROOT / test).exists()] == []


def test_a_seed_picks_the_same_mutants_and_a_changed_function_exchanges_its_own_only(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "SUBJECTS", {"sums": ("sums.py", "", "")})
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    source = tmp_path / "core" / "watchkeeper" / "sums.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "def one(a, b):\n    return a + b if a < b else a - b\n\ndef two(a):\n    return a * 3\n"
    )
    first = mutants.picked(99, 1)
    assert {one.operator for one in first} == {"arithmetic", "comparison", "condition", "constant", "return"}
    assert mutants.picked(3, 1) == first[:3]
    source.write_text(source.read_text().replace("a * 3", "a * 4"))
    exchanged = {one.key for one in first} ^ {one.key for one in mutants.picked(99, 1)}
    assert len(exchanged) == 6
    assert all("::two|" in key for key in exchanged)


def test_a_mutant_that_tests_notice_is_killed_and_one_that_they_do_not_survives(tmp_path, monkeypatch):
    monkeypatch.setattr(mutants, "SUBJECTS", {"sums": ("sums.py", "", "")})
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    for name, text in {
        "core/watchkeeper/__init__.py": "",
        "core/watchkeeper/sums.py": "def total(a, b):\n    return a + b\n\ndef unknown(a):\n    return a - 1\n",
        "tests/test_sums.py": "from watchkeeper import sums\n\ndef test_total():\n    assert sums.total(2, 2) == 4\n",
        "pyproject.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    state = tmp_path / "state.json"
    mutants.run(mutants.picked(9, 1), state, tests=["tests"])
    results = {
        (one["function"], one["operator"]): one["result"] for one in json.loads(state.read_text()).values()
    }
    assert results == {
        ("total", "arithmetic"): "killed", ("total", "return"): "killed",
        ("unknown", "arithmetic"): "survived", ("unknown", "constant"): "survived", ("unknown", "return"): "survived",
    }  # fmt: skip
    assert "2 of 5 noticed (40.0%)" in "\n".join(mutants.report(mutants.picked(9, 1), state))
