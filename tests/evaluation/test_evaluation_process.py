"""Evaluations as a run makes them: records, scores and settings, the same bytes each time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.evaluation.process import work
from tasks.problems import Problem
from tasks.rewards import verify
from tests.evaluation.conftest import BASE, PROJECT, QUESTIONS, copy_of_base, read_records, spec, write_task


def test_an_evaluation_writes_records_scores_and_settings(
    tmp_path: Path, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What a model's generation config says besides its special tokens must not matter.
    hostile = json.loads((BASE / "generation_config.json").read_text())
    hostile |= {"repetition_penalty": 5.0, "max_new_tokens": 3, "no_repeat_ngram_size": 2, "do_sample": True}
    twin = copy_of_base(tmp_path / "twin", "generation_config.json", json.dumps(hostile))
    run = spec(tmp_path, prepared, models={"base": {"path": str(BASE)}, "twin": {"path": twin}})
    work(run)

    found = read_records(run.output, "base", "arithmetic")
    assert [row["id"] for row in found] == [f"chain-{number}" for number in range(6)]
    assert [row["target"] for row in found] == list(QUESTIONS.values())
    assert [row["question"] for row in found] == list(QUESTIONS)
    assert found[0]["prompt"] == "<|user|>7-5+5+7<|end|><|assistant|>"
    assert found[0]["completion"].startswith("7-5=2\n2+5=7\n7+7=14")
    for row, (prompt, answer) in zip(found, QUESTIONS.items(), strict=True):
        problem = Problem(id="x", source="chains", prompt=prompt, answer=answer, verifier="numeric")
        assert row["score"]["acc"] == verify(row["completion"], problem).score
    for task in run.tasks:
        assert read_records(run.output, "twin", task) == read_records(run.output, "base", task)

    scores = json.loads((run.output / "scores.json").read_text())
    assert scores["base"]["arithmetic"] == {
        "n": 6,
        "acc": sum(row["score"]["acc"] for row in found) / 6,
        "answered": sum(row["score"]["answered"] for row in found) / 6,
    }
    assert scores["twin"]["arithmetic_short"]["n"] == 1
    settings = json.loads((run.output / "settings.json").read_text())
    assert torch.are_deterministic_algorithms_enabled()
    assert settings["tasks"]["arithmetic"]["description"] == ""
    assert settings["tasks"]["arithmetic"]["generation_kwargs"]["max_gen_toks"] == 48
    assert (settings["dtype"], settings["batch_size"], settings["limit"]) == ("float32", 4, None)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed] == [[m, t] for m in run.models for t in run.tasks]


def test_another_process_writes_the_same_bytes(tmp_path: Path, prepared: Path) -> None:
    here, there = spec(tmp_path, prepared), spec(tmp_path, prepared)
    work(here)
    (tmp_path / "spec.json").write_text(there.model_dump_json())
    command = [sys.executable, "-m", "tasks.evaluation.process", str(tmp_path / "spec.json")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    files = sorted(path.relative_to(here.output) for path in here.output.rglob("*") if path.is_file())
    assert len(files) == 4
    assert {f: (here.output / f).read_bytes() for f in files} == {f: (there.output / f).read_bytes() for f in files}


def test_limit_takes_the_first_items(tmp_path: Path, prepared: Path) -> None:
    run = spec(tmp_path, prepared, tasks=["arithmetic"], limit=2)
    work(run)
    assert [row["id"] for row in read_records(run.output, "base", "arithmetic")] == ["chain-0", "chain-1"]


def test_a_multiple_choice_task_is_recorded_by_its_likelihoods(tmp_path: Path, prepared: Path) -> None:
    rows = [{"q": q, "choices": ["9", f"{q[:3]}={eval(q[:3])}", "3"], "gold": 1} for q in QUESTIONS]  # noqa: S307
    folder = write_task(
        tmp_path / "evals",
        rows,
        output_type="multiple_choice",
        doc_to_text="q",
        doc_to_choice="choices",
        doc_to_target="gold",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    run = spec(tmp_path, prepared, tasks=["other"], include_path=folder)
    work(run)
    found = read_records(run.output, "base", "other")
    assert [row["id"] for row in found] == [str(number) for number in range(6)]
    likelihoods = [[likelihood for ((likelihood, _),) in json.loads(row["completion"])] for row in found]
    assert [row["score"]["acc"] for row in found] == [float(ll.index(max(ll)) == 1) for ll in likelihoods]
    assert sum(row["score"]["acc"] for row in found) > 3


def test_several_filters_give_one_record_with_a_score_for_each(tmp_path: Path, prepared: Path) -> None:
    def extract(name: str, pattern: str) -> dict[str, Any]:
        return {
            "name": name,
            "filter": [{"function": "regex", "regex_pattern": pattern}, {"function": "take_first"}],
        }

    folder = write_task(
        tmp_path / "evals",
        [{"id": f"n{number}", "q": q, "a": a} for number, (q, a) in enumerate(QUESTIONS.items())],
        output_type="generate_until",
        doc_to_text="q",
        doc_to_target="a",
        generation_kwargs={"until": [], "max_gen_toks": 48, "do_sample": False},
        filter_list=[extract("never", "answer: (.*)"), extract("last", "=(-?[0-9]+)(?:\n#.*)?$")],
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    run = spec(tmp_path, prepared, tasks=["other"], include_path=folder)
    work(run)
    found = read_records(run.output, "base", "other")
    assert [row["id"] for row in found] == [f"n{number}" for number in range(6)]
    assert all(row["score"] == {"exact_match,never": 0.0, "exact_match,last": 1.0} for row in found)
    assert json.loads((run.output / "scores.json").read_text())["base"]["other"] == {
        "n": 6,
        "exact_match,never": 0.0,
        "exact_match,last": 1.0,
    }


def test_a_task_over_prepared_problems_is_one_yaml_file(tmp_path: Path, prepared: Path) -> None:
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "mine"}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**own, "dataset_kwargs": {"source": "short"}}))
    run = spec(tmp_path, prepared, tasks=["mine"], include_path=folder)
    work(run)
    assert [row["id"] for row in read_records(run.output, "base", "mine")] == ["short-0"]


@pytest.mark.slow
def test_the_tasks_work_for_users_of_lm_eval(tmp_path: Path, prepared: Path) -> None:
    run = spec(tmp_path, prepared)
    work(run)
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--include_path", "evals"]
    command += ["--model_args", f"pretrained={BASE},dtype=float32", "--device", "cpu", "--batch_size", "4"]
    command += ["--tasks", "arithmetic,arithmetic_short", "--apply_chat_template"]
    command += ["--metadata", json.dumps({"prepared": str(prepared)})]
    command += ["--output_path", str(tmp_path / "theirs"), "--log_samples"]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (samples,) = (tmp_path / "theirs").rglob("samples_arithmetic_2*.jsonl")
    theirs = [json.loads(line) for line in samples.read_text().splitlines()]
    ours = read_records(run.output, "base", "arithmetic")
    assert [row["resps"][0][0] for row in theirs] == [row["completion"] for row in ours]
    assert [row["acc"] for row in theirs] == [row["score"]["acc"] for row in ours]
