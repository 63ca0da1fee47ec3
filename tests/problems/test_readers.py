import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import UserError
from tasks.problems import Problem, fingerprint, read_source
from tasks.rewards import check_gold

GOOD = {"prompt": "What is 2+3?", "answer": "5"}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(path: Path) -> list[Problem]:
    return list(read_source(path, "mine", "numeric", check_gold))


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    return str(caught.value)


def test_a_row_with_everything(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "id": "a-1",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"}],
        "answer": "5",
        "verifier": "numeric",
        "solution": "#5",
        "tests": [None, {"in": 1}],
        "chosen": "#5",
        "rejected": "#6",
        "metadata": {"origin": None, "page": 3},
    }
    [problem] = read(write(tmp_path, row))
    assert problem.messages == row["messages"]
    assert (problem.id, problem.source, problem.answer, problem.tests) == ("a-1", "mine", "5", [None, {"in": 1}])
    again = Problem.model_validate_json(problem.model_dump_json(exclude_defaults=True))
    assert again == problem
    assert again.metadata == {"origin": None, "page": 3}


def test_the_least_a_row_needs(tmp_path: Path) -> None:
    verified, plain = read(write(tmp_path, {"prompt": "2+3?", "answer": 5}, "", {"prompt": "Say hello.", "id": None}))
    assert (verified.answer, verified.verifier, verified.messages) == (
        "5",
        "numeric",
        [{"role": "user", "content": "2+3?"}],
    )
    assert verified.id == fingerprint(verified)[:16]
    assert (plain.answer, plain.verifier) == (None, None)


def test_numbers_become_text_but_nothing_else_does(tmp_path: Path) -> None:
    rows = read(write(tmp_path, {"prompt": "a", "answer": 1.5, "id": 7}, {"prompt": "b", "answer": -12, "id": 8}))
    assert [(row.id, row.answer) for row in rows] == [("7", "1.5"), ("8", "-12")]
    assert "field 'answer' must be a valid string (got True)" in refusal(
        write(tmp_path, {"prompt": "a", "answer": True})
    )


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"prompt": "caf\xc3\xa9\xe2\x80\xa8?", "answer": 5}\r\n\r\n')
    assert [row.prompt for row in read(path)] == ["café\u2028?"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "x"', "not valid JSON at column 15"),
        ("[1, 2]", "found a list; each line must be one JSON object"),
        ("null", "found null; each line"),
        ('{"prompt": NaN}', "NaN is not JSON"),
        ('{"prompt": "x", "answer": 1, "answer": 2}', "key 'answer' stands twice"),
        ('{"prompt": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"answer": ' + "9" * 5000 + "}", "each line must be one JSON object"),
        ({"answer": "5"}, 'field \'prompt\' is missing; for example "prompt": "What is 2+3?"'),
        ({**GOOD, "prompt": " \n"}, "field 'prompt' is empty; for example"),
        ({**GOOD, "prompt": 5}, "field 'prompt' must be a valid string (got 5)"),
        ({**GOOD, "prompt": []}, "field 'prompt' is empty"),
        ({"messages": "hi"}, "field 'messages' must be a list of turns; for example \"messages\": [{"),
        ({"messages": [{"role": "user", "content": ""}]}, "field 'messages' is empty"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "field 'messages', turn 1, 'role' must be 'system', 'user'",
        ),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "'messages', turn 1, 'name' Extra inputs"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
            "field 'messages' ends with the assistant's turn: what the model should say belongs in `solution`",
        ),
        ({**GOOD, "messages": [{"role": "user", "content": "x"}]}, "'prompt' and 'messages' both ask the question"),
        ({**GOOD, "source": "web"}, "field 'source' is set to the name in params.yaml"),
        ({**GOOD, "soluton": "x"}, "field 'soluton' is not known; did you mean 'solution'? There are: id, prompt"),
        ({**GOOD, "solution": ""}, "field 'solution' is empty"),
        ({**GOOD, "tests": "x"}, "field 'tests' must be a valid list (got 'x')"),
        ({**GOOD, "metadata": "z" * 99}, "field 'metadata' must be a valid dictionary (got 'zzz"),
        ({**GOOD, "chosen": "x"}, "`chosen` and `rejected` come together"),
        ({**GOOD, "verifier": "numerik"}, "field 'verifier': there is no verifier 'numerik'; did you mean 'numeric'?"),
        ({**GOOD, "answer": "1,23"}, "field 'answer': '1,23' is not one number"),
        ({"prompt": "x", "verifier": "numeric"}, "field 'answer' is missing, and the numeric verifier"),
    ],
)
def test_a_wrong_row_is_named_with_its_place(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, line)
    told = refusal(path)
    assert told.startswith(f"{path}:2: ")
    assert message in told
    assert len(told) < 1000


def test_the_default_verifier_is_named_where_it_is_at_fault(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    with pytest.raises(UserError, match=r"there is no verifier 'nope'.*data\.sources\.mine\.verifier"):
        list(read_source(path, "mine", "nope", check_gold))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    assert f"{path}:1: byte 16 of the line is not UTF-8" in refusal(path)


def test_an_id_stands_once(tmp_path: Path) -> None:
    path = write(tmp_path, {**GOOD, "id": "a"}, {"prompt": "x"}, {"prompt": "y", "id": "a"})
    assert f"{path}:3: field 'id': 'a' already stands in line 1" in refusal(path)


def test_a_row_without_id_may_stand_twice(tmp_path: Path) -> None:
    assert len(read(write(tmp_path, GOOD, GOOD))) == 2


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(text)
    assert f"{path}: holds no rows; each line must be one JSON object" in refusal(path)


def test_a_file_that_is_not_there_or_not_known_is_refused(tmp_path: Path) -> None:
    assert "there is no such file; data.sources.mine.path" in refusal(tmp_path / "none.jsonl")
    (tmp_path / "table.xls").write_text("x")
    assert "cannot read .xls; known: .jsonl" in refusal(tmp_path / "table.xls")
