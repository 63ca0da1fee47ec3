"""A user's mistake gives one clear error, before anything is trained."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ratchet


@pytest.fixture(scope="module")
def checkout(fresh_checkout: Callable[..., Path]) -> Path:
    return fresh_checkout("mistakes")


def refused(checkout: Path, *arguments: str) -> str:
    """The error of a command that must fail as a user's mistake, and train nothing."""
    done = ratchet(checkout, *arguments)
    assert done.returncode == 2, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    stages = checkout / ".ratchet" / "stages"
    assert not [path.name for path in stages.glob("*") if path.name.startswith(("sft-", "grpo-"))]
    return done.stderr[done.stderr.index("\nratchet: ") if "\nratchet: " in done.stderr else 0 :].strip()


def test_a_misspelt_parameter(checkout: Path) -> None:
    error = refused(checkout, "run", "-S", "grpo.learning_rate=1")
    assert error.startswith("ratchet: -S grpo.learning_rate=1: unknown key 'grpo.learning_rate'")


def test_a_misspelt_argument_of_trl(checkout: Path) -> None:
    error = refused(checkout, "run", "-S", "grpo.trainer.learning_rat=1e-5")
    assert "GRPOConfig has no argument 'learning_rat' (did you mean 'learning_rate'?)" in error


def test_an_argument_that_the_stage_decides(checkout: Path) -> None:
    assert "sft.trainer.output_dir" in refused(checkout, "run", "-S", "sft.trainer.output_dir=x")


def test_a_missing_data_file(checkout: Path) -> None:
    error = refused(checkout, "run", "-S", "data.sources.chains.path=data/nothing.jsonl")
    assert "data.sources.chains.path: data/nothing.jsonl: there is no such file" in error


def test_a_malformed_row(checkout: Path) -> None:
    rows = [{"prompt": "1+1", "answer": "2"}, {"prompt": "1+2", "answr": "3"}]
    file = checkout / "data" / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    error = refused(checkout, "run", "-S", "data.sources.chains.path=data/mine.jsonl")
    assert "data/mine.jsonl:2" in error
    assert "answr" in error


@pytest.mark.parametrize("path", ["data/nothing", "./data", "some/deep/path"])
def test_a_model_that_does_not_exist(checkout: Path, path: str) -> None:
    assert "model" in refused(checkout, "run", "-S", f"model.path={path}")


def test_an_unknown_evaluation_task(checkout: Path) -> None:
    error = refused(
        checkout, "run", "-S", "evaluation.tasks=[arithmetics]", "-S", "gate={primary: {task: arithmetics}, guards: []}"
    )
    assert "a task 'arithmetics'; did you mean arithmetic" in error


def test_an_unknown_metric(checkout: Path) -> None:
    error = refused(checkout, "run", "-S", "gate.guards.0.metric=accuracy")
    assert "gate: task 'arithmetic_short' has no metric 'accuracy'" in error


def test_too_few_rows_for_a_batch(checkout: Path) -> None:
    file = checkout / "data" / "few.jsonl"
    file.write_text(
        "".join(json.dumps({"prompt": f"1+{n}", "answer": n + 1, "solution": f"#{n + 1}"}) + "\n" for n in range(9))
    )
    few = [
        "-S",
        "data.sources.chains.path=data/few.jsonl",
        "-S",
        "data.sources.chains.split={train: 0.5, dev: 0.5, eval: 0}",
    ]
    error = refused(
        checkout,
        "run",
        *few,
        "-S",
        "data.sources.short.split={train: 0, eval: 1}",
        "-S",
        "data.sources.long.split={train: 0, eval: 1}",
    )
    assert "grpo" in error


def test_an_unknown_recipe(checkout: Path) -> None:
    assert "no recipe 'nothing'" in refused(checkout, "run", "--recipe", "nothing")


def test_a_run_that_there_is_not(checkout: Path) -> None:
    assert "no progression with a run id that starts with 'abc'" in refused(checkout, "report", "abc")


def test_no_dev_row_to_decide_on(checkout: Path) -> None:
    error = refused(checkout, "run", "-S", "data.sources.chains.split={train: 0.8, dev: 0, eval: 0.2}")
    assert "no row of the dev split can be verified" in error
    assert "dev: 0.1" in error
