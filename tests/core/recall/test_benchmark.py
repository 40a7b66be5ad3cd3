"""The benchmark scores any set of its form, and says what it left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from benchmarks import recall as benchmark

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


def scores(path: Path, limit: int) -> dict[str, Any]:
    return benchmark.score([path], limit, say=lambda line: None)


def test_ids_of_any_sort_missing_evidence_empty_queries_repeats_and_odd_text_are_scored(
    tmp_path: Path,
) -> None:
    result = scores(written(tmp_path / "hard.json", HARD), 10)
    row = result["kinds"]["hard"]
    assert (row["documents"], row["queries"]) == (6, 6)
    assert (result["unknown_evidence"], result["unscored_queries"], result["repeated_ids"]) == (2, 2, 1)
    assert row["fts5_bm25"] == 0.5
    assert row["recall"] == pytest.approx(4 / 6, abs=1e-4)


def test_the_baseline_is_fts5s_own_order_of_any_of_the_words(tmp_path: Path) -> None:
    documents = [
        {"id": n, "text": text}
        for n, text in enumerate(["the cat", "a cat and the dog", "the bird", "the dog"])
    ]
    one = {"documents": documents, "queries": [{"text": "the dog?", "evidence": [3]}]}
    assert scores(written(tmp_path / "one.json", one), 1)["kinds"]["one"]["fts5_bm25"] == 1.0


def test_repeated_ids_take_one_place_each(tmp_path: Path) -> None:
    documents = [{"id": "same", "text": f"whale {n}"} for n in range(20)] + [
        {"id": "other", "text": "a whale was seen far away"}
    ]
    one = {"documents": documents, "queries": [{"text": "whale", "evidence": ["same", "other"]}]}
    row = scores(written(tmp_path / "one.json", one), 2)["kinds"]["one"]
    assert (row["fts5_bm25"], row["recall"]) == (1.0, 1.0)


def test_queries_are_made_from_a_recorded_session_by_the_seed() -> None:
    said = [
        ("1", "Read src/app/lexer.rs: `nextToken` calls peek_char_at"),
        ("2", "error[E0308]: mismatched types in nextToken\n数据库连接 データの保存"),
        ("3", "commit 9f86d081884c7d659a2f"),
    ]
    made = benchmark.queries_of(said, random.Random(1), 10)
    asked = {(one.kind, one.text): one.evidence for one in made}
    assert asked["words of an identifier", "peek char at"] == {"1"}
    assert asked["symbol", "nextToken"] == {"1", "2"}
    assert asked["path", "src/app/lexer.rs"] == {"1"}
    assert asked["error line", "error[E0308]: mismatched types in nextToken"] == {"2"}
    assert asked["hash", "9f86d081884c7d659a2f"] == {"3"}
    assert {kind for kind, _ in asked} == {
        *(kind for kind, _, _ in benchmark.KINDS),
        "a rare name in a question",
    }
    assert made == benchmark.queries_of(said, random.Random(1), 10)


def test_public_sets_are_read_from_the_folder_and_absent_ones_are_named(tmp_path: Path) -> None:
    turns = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": "My harbour is Kiel"},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "Nice", "blip_caption": "a lighthouse"},
    ]
    talk = {"speaker_a": "Ann", "session_1": turns, "session_1_date_time": "today"}
    asked = [{"question": "whose harbour?", "evidence": ["D1:1; D1:2"]}]
    (tmp_path / "locomo").mkdir()
    written(tmp_path / "locomo" / "locomo10.json", [{"conversation": talk, "qa": asked}])
    said: list[str] = []
    result = benchmark.score([], data=tmp_path, say=said.append)
    assert result["kinds"]["LoCoMo"]["recall"] == 1.0
    assert [line.split(":")[0] for line in said] == ["BEAM 100K", "CoSQA"]


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
        scores(written(tmp_path / "none.json", {"documents": [], "queries": []}), 10)


def test_questions_about_sentences_are_made_of_their_words_in_other_forms() -> None:
    said = [
        ("1", "Look: We configured the parsers and validated every nested schema before loading. Done."),
        ("2", "parser configure validate schemas load"),
    ]
    made = benchmark.queries_of(said, random.Random(1), 10)
    (changed,) = (one for one in made if one.kind == "other forms of words")
    assert changed.evidence == {"1"}
    words = set(changed.text.split())
    assert len(words & {"parser", "configure", "validate", "schemas", "load"}) >= 2
    (quoted,) = (one for one in made if one.kind == "a quotation")
    assert quoted.text in said[0][1]
