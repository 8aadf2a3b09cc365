"""The blind sample of the window: read whole, counted and corrected as worked out by hand."""

from __future__ import annotations

import pytest

from ranker.core.errors import InputError
from train.labels.window import UNJUDGED, compare, main, of_the_domain, read_sample


def test_the_shipped_sample_is_whole():
    sample = read_sample()
    assert len(sample) == 2_630
    assert len({query for query, _ in sample}) == 252
    assert set(sample.values()) == {0, 1, 2, 3, 4}


def test_pairs_are_counted_by_known_and_blind_grade():
    sample = {("q", "a"): 1, ("q", "b"): 0, ("q", "c"): 1, ("r", "a"): 3}
    counts = compare(sample, {"q": {"a": 1, "b": 0}, "r": {"a": 4}})
    assert counts == {(1, 1): 1, (0, 0): 1, (UNJUDGED, 1): 1, (4, 3): 1}
    with pytest.raises(InputError, match="'r'"):
        compare(sample, {"q": {}})


def test_the_share_is_corrected_by_the_controls():
    # The grader confirms 8 of 10 ones and 9 of 10 zeros. Of 100 skills, 60 of which are ones, it then gives
    # 60 x 0.8 + 40 x 0.1 = 52 a 1.
    counts = {(1, 1): 8, (1, 0): 2, (0, 0): 9, (0, 1): 1, (UNJUDGED, 1): 52, (UNJUDGED, 0): 48}
    result = of_the_domain(counts)
    assert result["blind"] == pytest.approx(0.52)
    assert result["estimate"] == pytest.approx(0.6)
    assert of_the_domain({(1, 0): 1, (0, 0): 1, (UNJUDGED, 1): 1})["estimate"] != pytest.approx(1)  # nothing to go by


def test_the_command_needs_the_queries_of_the_sample(tmp_path, capsys):
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "weld"}\n', encoding="utf-8")
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\thttp://x/1\t4\n", encoding="utf-8")
    with pytest.raises(InputError, match="252 queries of the sample"):
        main(["--data", str(folder)])
    assert not capsys.readouterr().out
