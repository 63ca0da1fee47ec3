import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.errors import UserError
from tasks.evaluation.process import work
from tasks.evaluation.records import Record, check_pairs
from tasks.evaluation.spec import EvaluationSpec
from tasks.problems import Problem
from tasks.rewards import verify

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


def other_template(folder: Path) -> str:
    """The path of a copy of the base model with a chat template of its own."""
    template = (BASE / "chat_template.jinja").read_text().replace("<|user|>", "").replace("'<|'", "'<|end|><|'", 1)
    return copy_of_base(folder, "chat_template.jinja", template)


def test_models_that_read_different_prompts_are_refused_before_one_answers(
    tmp_path: Path, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_template(tmp_path / "other")
    run = spec(tmp_path, prepared, models={"base": {"path": str(BASE)}, "other": {"path": other}})
    with pytest.raises(UserError, match="task arithmetic: models base and other read different prompts for item 0"):
        work(run)
    assert list(run.output.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_model_may_have_a_prompt_of_its_own(tmp_path: Path, prepared: Path) -> None:
    other = other_template(tmp_path / "other")
    models = {
        "champion": {"path": other, "own_prompt": True},
        "base": {"path": str(BASE)},
        "tuned": {"path": str(BASE)},
    }
    run = spec(tmp_path, prepared, models=models, tasks=["arithmetic"])
    work(run)
    champion, base = (read_records(run.output, name, "arithmetic") for name in ("champion", "base"))
    assert champion[0]["prompt"] == "<|end|><|user|>7-5+5+7<|end|><|assistant|>"
    assert base[0]["prompt"] == "<|user|>7-5+5+7<|end|><|assistant|>"
    for key in ("id", "doc_hash", "question", "target"):
        assert [row[key] for row in champion] == [row[key] for row in base]

    models["tuned"]["path"] = other
    with pytest.raises(UserError, match="models base and tuned read different prompts"):
        work(spec(tmp_path, prepared, models=models, tasks=["arithmetic"]))


def record(**changes: Any) -> Record:
    same = {
        "id": "a",
        "doc_hash": "d",
        "prompt_hash": "p",
        "question": "1+1",
        "prompt": "",
        "completion": "",
        "target": "",
    }
    return Record(score={}, **{**same, **changes})


@pytest.mark.parametrize("change", ["doc_hash", "question"])
def test_different_items_are_never_paired(change: str) -> None:
    by_model = {"base": [record()], "champion": [record(**{change: "other"})]}
    with pytest.raises(RuntimeError, match="task t: models base and champion were given different items"):
        check_pairs("t", by_model, own_prompt={"champion"})


def test_records_of_different_prompts_are_paired_only_where_that_is_meant() -> None:
    by_model = {"champion": [record(prompt_hash="other")], "base": [record()], "tuned": [record()]}
    check_pairs("t", by_model, own_prompt={"champion"})
    with pytest.raises(RuntimeError, match="models champion and base read different prompts for item a"):
        check_pairs("t", by_model, own_prompt=set())
    by_model["tuned"] = [record(prompt_hash="third")]
    with pytest.raises(RuntimeError, match="models base and tuned read different prompts for item a"):
        check_pairs("t", by_model, own_prompt={"champion"})


def without_template(folder: Path) -> str:
    shutil.copytree(BASE, folder)
    (folder / "chat_template.jinja").unlink()
    return str(folder)


def test_a_base_without_a_chat_template_is_asked_in_that_of_the_trained_model(tmp_path: Path, prepared: Path) -> None:
    bare = without_template(tmp_path / "bare")
    models = {"base": {"path": bare}, "sft": {"path": str(BASE)}}
    with pytest.raises(UserError, match=r"models base and sft read different prompts for item 0.*: '7-5\+5\+7' and"):
        work(spec(tmp_path, prepared, models=models))
    models["base"]["chat_template_from"] = str(BASE)
    run = spec(tmp_path, prepared, models=models, tasks=["arithmetic"])
    work(run)
    assert read_records(run.output, "base", "arithmetic") == read_records(run.output, "sft", "arithmetic")


def test_a_models_own_chat_template_stays(tmp_path: Path, prepared: Path) -> None:
    models = {"base": {"path": str(BASE), "chat_template_from": other_template(tmp_path / "other")}}
    run = spec(tmp_path, prepared, models=models, tasks=["arithmetic"], limit=1)
    work(run)
    assert read_records(run.output, "base", "arithmetic")[0]["prompt"] == "<|user|>7-5+5+7<|end|><|assistant|>"


def test_a_chat_template_that_is_nowhere_is_a_mistake(tmp_path: Path, prepared: Path) -> None:
    bare = without_template(tmp_path / "bare")
    with pytest.raises(UserError, match=f"model base: neither {bare} nor {bare} has a chat template"):
        work(spec(tmp_path, prepared, models={"base": {"path": bare, "chat_template_from": bare}}))


def test_a_description_that_the_chat_template_rejects_is_not_dropped(tmp_path: Path, prepared: Path) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    model = copy_of_base(tmp_path / "model", "chat_template.jinja", strict + (BASE / "chat_template.jinja").read_text())
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "mine", "description": "Add up."}
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    run = spec(tmp_path, prepared, models={"base": {"path": model}}, tasks=["mine"], include_path=folder)
    with pytest.raises(
        UserError, match="rejects a conversation of system, user: no system role; a task's `description`"
    ):
        work(run)
    described = spec(tmp_path, prepared, tasks=["mine"], include_path=folder)
    work(described)
    assert json.loads((described.output / "settings.json").read_text())["tasks"]["mine"]["description"] == "Add up."
    assert "Add up." in read_records(described.output, "base", "mine")[0]["prompt"]


def test_weights_that_are_pickled_are_not_loaded(tmp_path: Path, prepared: Path) -> None:
    from safetensors.torch import load_file

    model = tmp_path / "model"
    shutil.copytree(BASE, model)
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model base: .* cannot be loaded: .*model\.safetensors"):
        work(spec(tmp_path, prepared, models={"base": {"path": str(model)}}))


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
    assert "has: arithmetic, arithmetic_long, arithmetic_short)" in message


def test_a_group_is_refused_with_its_tasks(tmp_path: Path, prepared: Path) -> None:
    shutil.copytree(PROJECT / "evals", tmp_path / "evals")
    (tmp_path / "evals" / "group.yaml").write_text("group: all_chains\ntask: [arithmetic, arithmetic_short]\n")
    with pytest.raises(UserError, match=r"'all_chains' is a group of tasks; .*: arithmetic, arithmetic_short"):
        work(spec(tmp_path, prepared, tasks=["all_chains"], include_path=tmp_path / "evals"))


def test_models_are_compared_in_one_dtype(tmp_path: Path, prepared: Path) -> None:
    models = {"a": {"path": str(BASE)}, "b": {"path": str(BASE), "dtype": "bfloat16"}}
    with pytest.raises(ValueError, match="compared in one dtype only"):
        spec(tmp_path, prepared, models=models)


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
