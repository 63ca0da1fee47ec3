"""The tiny base, a small prepared dataset and specs over them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.evaluation.spec import EvaluationSpec
from tasks.problems import Problem

PROJECT = Path(__file__).parents[2]
BASE = PROJECT / "data" / "base"
QUESTIONS = {"7-5+5+7": "14", "1+1+3-7": "-2", "9-3-3+1": "4", "0+8-9+2": "1", "5+5+5+5": "20", "3-9+4-2": "-4"}


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared"
    folder.mkdir()
    problems = [
        Problem(id=f"chain-{number}", source="chains", prompt=prompt, answer=answer, verifier="numeric")
        for number, (prompt, answer) in enumerate(QUESTIONS.items())
    ]
    problems.append(Problem(id="short-0", source="short", prompt="4-5-5", answer="-6", verifier="numeric"))
    (folder / "eval.jsonl").write_text("".join(p.model_dump_json(exclude_defaults=True) + "\n" for p in problems))
    return folder


def spec(tmp_path: Path, prepared: Path, **changes: Any) -> EvaluationSpec:
    output = tmp_path / f"output-{len(list(tmp_path.iterdir()))}"
    output.mkdir()
    given = {
        "models": {"base": {"path": str(BASE)}},
        "tasks": ["arithmetic", "arithmetic_short"],
        "include_path": PROJECT / "evals",
        "data": prepared,
        "batch_size": 4,
        "seed": 1,
        "output": output,
    }
    return EvaluationSpec.model_validate({**given, **changes})


def read_records(folder: Path, model: str, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records" / model / f"{task}.jsonl").read_text().splitlines()]


def copy_of_base(folder: Path, file: str, text: str) -> str:
    """The path of a copy of the base model in which one file has another content."""
    shutil.copytree(BASE, folder)
    (folder / file).write_text(text)
    return str(folder)


def write_task(folder: Path, rows: list[dict[str, Any]], **config: Any) -> Path:
    """A folder with one lm-eval task named `other` over the rows."""
    folder.mkdir()
    (folder / "task.py").write_text(
        f"from datasets import Dataset\ndef dataset(**_):\n    return {{'test': Dataset.from_list({rows!r})}}\n"
    )
    text = yaml.safe_dump({"task": "other", "test_split": "test", "num_fewshot": 0, **config})
    (folder / "other.yaml").write_text(text + "custom_dataset: !function task.dataset\n")
    return folder
