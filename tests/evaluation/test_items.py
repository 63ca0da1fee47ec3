from pathlib import Path
from typing import Any

import pytest

from tasks.errors import UserError
from tasks.evaluation.items import dataset, process_results
from tasks.problems import Problem


def prepared(folder: Path, *rows: dict[str, Any]) -> Path:
    problems = [Problem(**{"source": "chains", "answer": "14", "verifier": "numeric", **row}) for row in rows]
    text = "".join(problem.model_dump_json(exclude_defaults=True) + "\n" for problem in problems)
    (folder / "eval.jsonl").write_text(text)
    return folder


def test_items_are_the_sources_problems_in_their_order(tmp_path: Path) -> None:
    folder = prepared(
        tmp_path,
        {"id": "b", "prompt": "7-5+5+7"},
        {"id": "other", "prompt": "1+1", "source": "short"},
        {"id": "a", "prompt": "7+7", "metadata": {"level": 1}},
    )
    found = dataset(folder, "chains")["test"]
    assert [(row["id"], row["question"], row["target"]) for row in found] == [
        ("b", "7-5+5+7", "14"),
        ("a", "7+7", "14"),
    ]
    assert Problem.model_validate_json(found[1]["problem"]).metadata == {"level": 1}


def test_a_source_without_items_is_named_with_those_that_have_some(tmp_path: Path) -> None:
    folder = prepared(tmp_path, {"id": "a", "prompt": "1+1", "source": "short"})
    with pytest.raises(UserError, match=r"eval\.jsonl has no problems of source 'chains'; it has: short \(1\)"):
        dataset(folder, "chains")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]},
            "'a' of source 'chains' has the messages system, user",
        ),
        ({"prompt": "1+1", "verifier": None}, "'a' of source 'chains' names no verifier"),
    ],
)
def test_a_problem_that_cannot_be_measured_is_refused(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        dataset(prepared(tmp_path, {"id": "a", **row}), "chains")


@pytest.mark.parametrize(
    ("completion", "acc", "answered"),
    [("7-5=2\n2+5=7\n7+7=14\n#14", 1.0, 1.0), ("#13", 0.0, 1.0), ("7-5=2\n2+5=7\n7+7=14", 0.0, 0.0), ("", 0.0, 0.0)],
)
def test_scores_are_the_verifiers(tmp_path: Path, completion: str, acc: float, answered: float) -> None:
    doc = dataset(prepared(tmp_path, {"id": "a", "prompt": "7-5+5+7"}), "chains")["test"][0]
    assert process_results(doc, [completion]) == {"acc": acc, "answered": answered}


def test_a_failing_verifier_is_not_a_wrong_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(completion: str, problem: Problem) -> None:
        raise OSError("no workers left")

    doc = dataset(prepared(tmp_path, {"id": "a", "prompt": "7-5+5+7"}), "chains")["test"][0]
    monkeypatch.setattr("tasks.rewards.numeric.verify", broken)
    with pytest.raises(RuntimeError, match=r"the verifier failed on item a: .*no workers left"):
        process_results(doc, ["#14"])
