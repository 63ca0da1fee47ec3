"""What models read: the same items in the same words, or a refusal before anything is answered."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tasks.errors import UserError
from tasks.evaluation.process import work
from tasks.evaluation.records import Record, check_pairs
from tests.evaluation.conftest import BASE, PROJECT, copy_of_base, read_records, spec


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
