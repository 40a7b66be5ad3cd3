"""The benchmark scores any set of its form, and says what it left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks import recall as benchmark

HARD: dict[str, Any] = {
    "documents": [
        {"id": 1, "text": "alpha bravo"},
        {"id": "1", "text": "charlie"},
        {"id": 2, "text": None},
        {"id": "x", "text": "Ünïcode \ud800 我们去上海"},
        {"id": 3.5, "text": 'NEAR( OR " *'},
        {"id": "long", "text": "delta " * 20_000 + "echo"},
    ],
    "queries": [
        {"text": "", "evidence": [1]},
        {"text": "charlie", "evidence": ["1"]},
        {"text": "上海", "evidence": ["x", 99]},
        {"text": "gone", "evidence": [77]},
        {"text": '" OR NEAR(', "evidence": [3.5]},
        {"text": None, "evidence": 2},
        {"text": "delta " * 5_000, "evidence": ["long"]},
        {"text": "nothing to score", "evidence": []},
    ],
}


def written(path: Path, whole: Any) -> Path:
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def test_ids_of_any_sort_missing_evidence_empty_queries_repeats_and_odd_text_are_scored(
    tmp_path: Path,
) -> None:
    result = benchmark.score([written(tmp_path / "hard.json", HARD)], 10)
    assert (result["documents"], result["queries"]) == (6, 6)
    assert (result["unknown_evidence"], result["unscored_queries"], result["repeated_ids"]) == (2, 2, 1)
    assert result["fts5_bm25"] == 0.5
    assert result["ours"] == pytest.approx(4 / 6, abs=1e-4)
    assert result["relative_gain"] == pytest.approx(1 / 3, abs=1e-3)


def test_the_baseline_is_fts5s_own_order_of_any_of_the_words(tmp_path: Path) -> None:
    documents = [
        {"id": n, "text": text}
        for n, text in enumerate(["the cat", "a cat and the dog", "the bird", "the dog"])
    ]
    one = {"documents": documents, "queries": [{"text": "the dog?", "evidence": [3]}]}
    result = benchmark.score([written(tmp_path / "one.json", one)], 1)
    assert result["fts5_bm25"] == 1.0


def test_repeated_ids_take_one_place_each(tmp_path: Path) -> None:
    documents = [{"id": "same", "text": f"whale {n}"} for n in range(20)] + [
        {"id": "other", "text": "a whale was seen far away"}
    ]
    one = {"documents": documents, "queries": [{"text": "whale", "evidence": ["same", "other"]}]}
    result = benchmark.score([written(tmp_path / "one.json", one)], 2)
    assert (result["fts5_bm25"], result["ours"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    "whole",
    [[], {"documents": []}, {"documents": [{"id": 1}], "queries": []}, {"documents": 3, "queries": 1}],
)
def test_a_file_of_another_form_is_refused_in_one_line(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "bad.json", whole)
    monkeypatch.setattr("sys.argv", ["recall.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert "cannot score" in str(ended.value)
    assert "\n" not in str(ended.value)


def test_a_set_without_anything_to_score_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="nothing to score"):
        benchmark.score([written(tmp_path / "none.json", {"documents": [], "queries": []})], 10)
