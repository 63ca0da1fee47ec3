"""What an evaluation refuses, and what a check finds before anything is trained."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.errors import UserError
from tasks.evaluation.process import work
from tests.evaluation.conftest import BASE, PROJECT, QUESTIONS, read_records, spec, write_task


@pytest.mark.parametrize(
    ("prompt", "max_gen_toks", "says"),
    [("1+" * 50 + "1", 48, "prompt's 104 tokens and 48"), ("1+1", 500, "prompt's 6 tokens and 500")],
)
def test_a_prompt_that_does_not_fit_is_refused(
    tmp_path: Path, prepared: Path, prompt: str, max_gen_toks: int, says: str
) -> None:
    folder = write_task(
        tmp_path / "evals",
        [{"q": "1+1", "a": "2"}, {"q": prompt, "a": "0"}],
        output_type="generate_until",
        doc_to_text="q",
        doc_to_target="a",
        generation_kwargs={"until": [], "max_gen_toks": max_gen_toks, "do_sample": False},
    )
    with pytest.raises(UserError, match=f"{says} for the answer do not fit into the model's context of 128"):
        work(spec(tmp_path, prepared, tasks=["other"], include_path=folder))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"include_path": "/no/such/evals"}, "evaluation.include_path: there is no folder /no/such/evals"),
        ({"models": {"base": {"path": "/no/such/model"}}}, "model base: /no/such/model cannot be loaded"),
        ({"tasks": ["arithmetic_long"]}, "has no problems of source 'long'; it has: chains"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, prepared: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        work(spec(tmp_path, prepared, **changes))


def test_checking_alone_loads_no_model_and_writes_nothing(tmp_path: Path, prepared: Path) -> None:
    run = spec(tmp_path, prepared, models={}, check_only=True, metrics={"arithmetic": ["acc", "answered"]})
    (tmp_path / "spec.json").write_text(run.model_dump_json())
    command = [sys.executable, "-X", "importtime", "-m", "tasks.evaluation.process", str(tmp_path / "spec.json")]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "")
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "lm_eval.evaluator" in imported
    assert not imported & {"torch", "transformers"}, "the check is quick because it does without them"
    assert all(line.startswith("import time:") for line in ended.stderr.splitlines())
    assert list(run.output.iterdir()) == []


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (
            {"arithmetic_short": ["acc", "answred"]},
            "'arithmetic_short' has no metric 'answred'; did you mean answered?",
        ),
        ({"arithmetic": ["f1"]}, r"'arithmetic' has no metric 'f1' \(its metrics of single items: acc, answered\)"),
    ],
)
@pytest.mark.parametrize("check_only", [True, False])
def test_a_metric_that_a_task_does_not_yield_is_named_with_those_it_does(
    tmp_path: Path, prepared: Path, check_only: bool, metrics: dict[str, list[str]], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        work(spec(tmp_path, prepared, check_only=check_only, metrics=metrics))


def test_a_metric_of_several_filters_is_named_with_its_filter(tmp_path: Path, prepared: Path) -> None:
    folder = write_task(
        tmp_path / "evals",
        [{"q": q, "a": a} for q, a in QUESTIONS.items()],
        output_type="generate_until",
        doc_to_text="q",
        doc_to_target="a",
        fewshot_split="test",
        num_fewshot=2,
        generation_kwargs={"until": [], "max_gen_toks": 8, "do_sample": False},
        filter_list=[{"name": name, "filter": [{"function": "take_first"}]} for name in ("strict", "loose")],
        metric_list=[
            {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
            {"metric": "ter", "aggregation": "ter", "higher_is_better": False},
        ],
    )

    def check(metric: str) -> None:
        check_run = {"tasks": ["other"], "include_path": folder, "metrics": {"other": [metric]}}
        work(spec(tmp_path, prepared, models={}, check_only=True, **check_run))

    check("exact_match,strict")
    with pytest.raises(UserError, match=r"no metric 'exact_match'; did you mean exact_match,"):
        check("exact_match")
    # lm-eval's `ter` is computed over the whole task, so no item has one.
    with pytest.raises(UserError, match=r"no metric 'ter,strict'.*: exact_match,strict, exact_match,loose\)"):
        check("ter,strict")


def test_a_metric_that_is_better_when_lower_is_refused(tmp_path: Path, prepared: Path) -> None:
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "mine"}
    answered = {"metric": "answered", "aggregation": "mean", "higher_is_better": False}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**own, "metric_list": [answered]}))
    run = {"models": {}, "check_only": True, "tasks": ["mine"], "include_path": folder}
    with pytest.raises(
        UserError, match=r"of task 'mine', lower values of 'answered' are better, but the gate takes hig"
    ):
        work(spec(tmp_path, prepared, **run, metrics={"mine": ["answered"]}))


def test_a_check_finds_a_task_without_items(tmp_path: Path, prepared: Path) -> None:
    with pytest.raises(UserError, match="has no problems of source 'long'; it has: chains"):
        work(spec(tmp_path, prepared, models={}, check_only=True, tasks=["arithmetic", "arithmetic_long"]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"models": {}}, "no model is named"),
        ({"metrics": {"other": ["acc"]}}, "metrics of task other, which is not evaluated"),
        ({"tasks": ["../up"]}, "should match pattern"),
        ({"tasks": [".hidden"]}, "should match pattern"),
        ({"tasks": ["a/b"]}, "should match pattern"),
    ],
)
def test_what_a_spec_may_not_say(tmp_path: Path, prepared: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(tmp_path, prepared, **changes)


def test_a_task_may_have_dots_in_its_name(tmp_path: Path, prepared: Path) -> None:
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "chains_v1.5"}
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    run = spec(tmp_path, prepared, tasks=["chains_v1.5"], include_path=folder, limit=1)
    work(run)
    assert len(read_records(run.output, "base", "chains_v1.5")) == 1


@pytest.mark.slow  # lm-eval reads the YAML files of all its own tasks
def test_an_unknown_task_is_named_with_the_nearest_ones(tmp_path: Path, prepared: Path) -> None:
    with pytest.raises(UserError) as raised:
        work(spec(tmp_path, prepared, tasks=["arithmetic_shrt"]))
    message = str(raised.value)
    assert "has a task 'arithmetic_shrt'; did you mean arithmetic_short" in message
    assert "has: arithmetic, arithmetic_long, arithmetic_short, " in message


def test_a_group_is_refused_with_its_tasks(tmp_path: Path, prepared: Path) -> None:
    shutil.copytree(PROJECT / "evals", tmp_path / "evals")
    (tmp_path / "evals" / "group.yaml").write_text("group: all_chains\ntask: [arithmetic, arithmetic_short]\n")
    with pytest.raises(UserError, match=r"'all_chains' is a group of tasks; .*: arithmetic, arithmetic_short"):
        work(spec(tmp_path, prepared, tasks=["all_chains"], include_path=tmp_path / "evals"))


def test_models_are_compared_in_one_dtype(tmp_path: Path, prepared: Path) -> None:
    models = {"a": {"path": str(BASE)}, "b": {"path": str(BASE), "dtype": "bfloat16"}}
    with pytest.raises(ValueError, match="compared in one dtype only"):
        spec(tmp_path, prepared, models=models)
