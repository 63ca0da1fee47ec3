import json

import pytest

from tasks.config.schema import Gate, Guard, Primary
from tasks.errors import UserError
from tasks.gating import Decision, compare_files, read_records, read_scores


def write(path, *rows):
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def test_ids_and_scores_of_every_allowed_kind(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        {"id": 7, "score": True},
        "",
        {"id": "é", "score": 0.25, "prompt": "ignored"},
        {"id": "z", "score": -3},
    )
    assert read_scores(path) == {"7": 1.0, "é": 0.25, "z": -3.0}


def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "score": 1}\r\n{"id": "b", "score": 0}\r\n')
    assert read_scores(path) == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nonsense", "not a JSON object"),
        ("[" * 200_000, "not a JSON object"),
        ("[1]", "a JSON list, not an object"),
        ({"score": 1}, "the key 'id' is missing"),
        ({"id": "b"}, "the key 'score' is missing"),
        ({"id": None, "score": 1}, "id: null is neither"),
        ({"id": True, "score": 1}, "id: true is neither"),
        ({"id": 1.5, "score": 1}, "id: 1.5 is neither"),
        ({"id": "", "score": 1}, 'id: "" is neither'),
        ({"id": "b", "score": "1"}, 'score: "1" is no finite number'),
        ({"id": "b", "score": None}, "score: null is no finite number"),
        ('{"id": "b", "score": NaN}', "score: NaN is no finite number"),
        ('{"id": "b", "score": -Infinity}', "score: -Infinity is no finite number"),
        ('{"id": "b", "score": 1' + "0" * 400 + "}", "is no finite number"),
        ({"id": "b", "score": {"acc": 1}}, "score: holds acc; name the metric to take"),
        ({"id": "a", "score": 0}, "id 'a' was already scored in line 1"),
    ],
)
def test_a_malformed_row_is_named(tmp_path, row, message):
    path = write(tmp_path / "a.jsonl", {"id": "a", "score": 1}, row)
    with pytest.raises(UserError) as error:
        read_scores(path)
    assert str(error.value).startswith(f"{path}:2: ") and message in str(error.value)
    assert len(str(error.value)) < 400


def test_files_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(UserError, match="holds no scores"):
        read_scores(write(tmp_path / "a.jsonl", ""))
    with pytest.raises(UserError, match="there is no such file"):
        read_scores(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        read_scores(tmp_path)
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        read_scores(tmp_path / "b.jsonl")


def test_a_metric_is_taken_from_an_evaluations_records(tmp_path):
    rows = [{"id": str(i), "score": {"acc": i % 2, "length": 10.0 + i}, "completion": "#1"} for i in range(4)]
    write(tmp_path / "chains.jsonl", *rows)
    write(tmp_path / "short.jsonl", *rows)
    rules = Gate(primary=Primary(task="chains"), guards=[Guard(task="short", metric="length")])
    records = read_records(tmp_path, rules)
    assert records[("chains", "acc")] == {"0": 0.0, "1": 1.0, "2": 0.0, "3": 1.0}
    assert records[("short", "length")]["3"] == 13.0
    with pytest.raises(UserError, match=r"chains.jsonl:1: score: holds acc, length; there is no metric 'f1'"):
        read_scores(tmp_path / "chains.jsonl", "f1")


def test_two_files_are_compared(tmp_path):
    before = write(tmp_path / "a.jsonl", *({"id": i, "score": 0} for i in range(200)))
    after = write(tmp_path / "b.jsonl", *({"id": i, "score": i % 3 == 0} for i in reversed(range(200))))
    result = compare_files(before, after, min_gain=0.05)
    assert result.decision is Decision.promote
    assert result.comparisons[0].baseline == str(before)
    assert result.comparisons[0].figures.wins == 67
    assert compare_files(after, before).decision is Decision.hold
    assert "identical on all 200 items" in compare_files(after, after).reasons[0]


def test_files_of_different_items_and_settings_out_of_range_are_refused(tmp_path):
    before = write(tmp_path / "a.jsonl", {"id": "a", "score": 0})
    after = write(tmp_path / "b.jsonl", {"id": "b", "score": 0})
    with pytest.raises(UserError, match="did not answer the same items"):
        compare_files(before, after)
    with pytest.raises(UserError, match=r"min_gain: .*greater than or equal to 0, not -1"):
        compare_files(before, before, min_gain=-1)
    with pytest.raises(UserError, match=r"confidence: .*less than 1, not 95"):
        compare_files(before, before, confidence=95)
