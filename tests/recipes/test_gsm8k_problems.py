"""problems.py: from GSM8K's rows to this project's."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.problems import Problem, read_source
from tasks.rewards import Status, check_gold, verify
from tests.recipes.conftest import COUNTS, questions, write_problems

GOOD = {"question": "Ann has 3 apples and gets 4. How many?", "answer": "3+4 = <<3+4=7>>7\n#### 7"}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def folder_of(tmp_path: Path, *train: dict[str, Any]) -> Path:
    for split, content in {"train": train, "test": (GOOD,)}.items():
        lines = (json.dumps(row) + "\n" for row in content)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return tmp_path


def test_every_row_becomes_a_problem_that_its_own_solution_solves(gsm8k: Path, tmp_path: Path) -> None:
    done = write_problems("--from", gsm8k, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for split, count in COUNTS.items():
        problems = list(read_source(tmp_path / f"{split}.jsonl", "gsm8k", "numeric", check_gold))
        assert len(problems) == count
        for problem, theirs in zip(problems, questions(split), strict=True):
            assert verify(problem.solution or "", problem).status is Status.RIGHT
            assert str(problem.prompt).startswith(theirs["question"])
            assert "####" in str(problem.prompt)
            assert "<<" not in (problem.solution or "")
        assert [problem.metadata["index"] for problem in problems] == list(range(count))


def test_a_row_reads_as_expected(tmp_path: Path) -> None:
    write_problems("--from", folder_of(tmp_path, GOOD), "--out", tmp_path / "out")
    [row] = rows(tmp_path / "out" / "train.jsonl")
    assert row["solution"] == "3+4 = 7\n#### 7"
    assert row["answer"] == "7"
    assert row["verifier"] == "numeric"
    problem = Problem.model_validate({"id": "0", "source": "s", **row})
    assert verify("3+4 = 8\n#### 8", problem).status is Status.WRONG
    assert verify("It is 7.", problem).status is Status.NO_ANSWER


def test_again_gives_the_same_bytes_and_leaves_nothing_else(gsm8k: Path, tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        assert write_problems("--from", gsm8k, "--out", tmp_path).returncode == 0
        contents.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert contents[0] == contents[1]
    assert contents[0].keys() == {"train.jsonl", "test.jsonl"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"question": "How many?", "answer": "3+4 = 7"}, "does not end in a line such as '#### 72'"),
        ({"question": "How many?", "answer": "3+4 = 7\n#### seven"}, "'seven' is not one number"),
        ({"question": "How many?", "answer": "#### 8\n3+4 = 7\n#### 7"}, "does not find the solution right: wrong"),
        ({"question": " ", "answer": "3+4 = 7\n#### 7"}, "expected the texts 'question' and 'answer'"),
        ({"question": "How many?", "answer": 7}, "expected the texts 'question' and 'answer'"),
        ({"prompt": "How many?"}, "expected the texts 'question' and 'answer', found prompt"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(bad: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, GOOD, bad)
    done = write_problems("--from", folder, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"problems.py: {folder / 'train.jsonl'}:2: ")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    done = write_problems("--from", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "train.jsonl: there is no such file" in done.stderr


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    done = write_problems("--from", folder_of(tmp_path), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "the split train has no rows" in done.stderr
