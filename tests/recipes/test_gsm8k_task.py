"""The evaluation of the recipe: the verifier's verdict, and the last number beside it."""

import json
from typing import Any

import pytest

from tasks.evaluation.spec import EvaluationSpec
from tasks.evaluation.tasks import check_metrics, load_tasks
from tasks.problems import Problem
from tests.recipes.conftest import PROJECT


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Any:
    prepared = tmp_path_factory.mktemp("prepared")
    answers = ["18", "-5", "1,234"]
    rows = [
        Problem(id=f"{index}", source=source, prompt=f"How many, {index}?", answer=answer, verifier="numeric")
        for index, answer in enumerate(answers)
        for source in ("gsm8k_train", "gsm8k_test")
    ]
    (prepared / "eval.jsonl").write_text("".join(row.model_dump_json(exclude_defaults=True) + "\n" for row in rows))
    names = ["gsm8k_ratchet"]
    common = {"models": {}, "check_only": True, "batch_size": 1, "seed": 1, "output": prepared}
    spec = EvaluationSpec(tasks=names, include_path=PROJECT / "evals", data=prepared, **common)
    return load_tasks(spec)["gsm8k_ratchet"]


def scores(task: Any, item: int, completion: str) -> dict[str, float]:
    return task.process_results(task.test_docs()[item], [completion])


def test_it_asks_the_test_set_greedily_with_room_to_think(task: Any) -> None:
    docs = list(task.test_docs())
    assert len(docs) == 3
    assert {json.loads(doc["problem"])["source"] for doc in docs} == {"gsm8k_test"}
    settings = task.config.generation_kwargs
    assert settings["until"] == []
    assert settings["max_gen_toks"] == 512
    assert settings["do_sample"] is False
    check_metrics(task, ["acc", "answered", "flexible"])


@pytest.mark.parametrize(
    ("item", "completion", "acc", "answered", "flexible"),
    [
        (0, "16-3-4 = 9\n9*2 = 18\n#### 18", 1, 1, 1),
        (0, "The answer is $18.", 0, 0, 1),
        (0, "It makes **18.00** dollars", 0, 0, 1),
        (0, "#### 18\nNo, wait: 19", 1, 1, 0),
        (0, "18 at first\n#### 17", 0, 1, 0),
        (0, "I do not know", 0, 0, 0),
        (0, "", 0, 0, 0),
        (1, "3-8 makes -5", 0, 0, 1),
        (1, "10-5", 0, 0, 0),
        (2, "1234", 0, 0, 1),
        (2, "1,234 shells, so 1,2,3", 0, 0, 0),
        (2, "\\boxed{1,234}", 1, 1, 1),
    ],
)
def test_marked_and_last_number(
    task: Any, item: int, completion: str, acc: float, answered: float, flexible: float
) -> None:
    assert scores(task, item, completion) == {"acc": acc, "answered": answered, "flexible": flexible}
