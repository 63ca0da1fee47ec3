"""A model is measured as it was trained: by the contract that it came with, and on the ids of its chat template."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks.errors import UserError
from tasks.evaluation import harness
from tasks.evaluation.process import work
from tasks.evaluation.spec import EvaluatedModel
from tasks.evaluation.tasks import load_tasks
from tasks.problems import read_split
from tasks.processes import contract
from tests.evaluation.conftest import BASE, PROJECT, read_records, spec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def trained(tmp_path: Path, prepared: Path) -> Path:
    """The folder of a stage that left the base model as it was: `model/` and `contract.json`."""
    shutil.copy(prepared / "eval.jsonl", prepared / "train.jsonl")
    folder = tmp_path / "sft"
    shutil.copytree(BASE, folder / "model")
    prompts = [problem.messages for problem in read_split(prepared, "train")]
    contract.write(contract.state(AutoTokenizer.from_pretrained(BASE), [1], prompts, prepared), folder)
    return folder


def evaluation(tmp_path: Path, prepared: Path, trained: Path, **changes: Any):
    model = {"path": str(trained / "model"), "contract": trained / "contract.json"}
    return spec(tmp_path, prepared, models={"base": {"path": str(BASE)}, "sft": model}, **changes)


def test_a_model_is_measured_on_what_it_was_trained_to_read(tmp_path: Path, prepared: Path, trained: Path) -> None:
    run = evaluation(tmp_path, prepared, trained)
    work(run)
    tokenizer = AutoTokenizer.from_pretrained(trained / "model")
    problems = [problem for problem in read_split(prepared, "eval") if problem.source == "chains"]
    read = [row["prompt"] for row in read_records(run.output, "sft", "arithmetic")]
    ids = tokenizer(read, add_special_tokens=False).input_ids
    assert ids == contract.prompt_ids(tokenizer, [problem.messages for problem in problems])


def rename(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sft, _: rename(sft / "model/tokenizer.json", '"Isolated"', '"Removed"'), "another tokenizer: not"),
        (lambda sft, _: rename(sft / "model/chat_template.jinja", "{% for", "#{% for"), "another chat template: not"),
        (lambda sft, _: rename(sft / "model/generation_config.json", ": 1,", ": [1, 2],"), r"end tokens, ids \[1, 2\]"),
        (lambda sft, _: (sft / "model/generation_config.json").unlink(), "has no generation_config"),
        (lambda sft, _: (sft / "contract.json").unlink(), "the stage has left no contract"),
        (lambda _, data: rename(data / "train.jsonl", "7-5+5+7", "7-5+5+8"), r"data are not those .*: train\.jsonl di"),
    ],
)  # fmt: skip
def test_another_model_or_other_data_than_the_contract_says_are_refused(
    tmp_path: Path, prepared: Path, trained: Path, capsys: pytest.CaptureFixture[str], change: Any, says: str
) -> None:
    change(trained, prepared)
    run = evaluation(tmp_path, prepared, trained)
    with pytest.raises(UserError, match=says):
        work(run)
    assert list(run.output.iterdir()) == []
    assert capsys.readouterr().out == ""


def beginning(folder: Path, template: str, bos_token: str | None) -> EvaluatedModel:
    """A small model whose tokenizer puts `<s>` before every text that is not the chat template's."""
    words = ["<s>", "<|im_start|>", "<|im_end|>", "user", "assistant", "system", *"0123456789+-=# \n", "?"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))  # noqa: S106
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(words[:6])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos_token, **names)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), eos_token_id=2, **sizes)).save_pretrained(folder)
    return EvaluatedModel(path=str(folder))


def asked(tmp_path: Path, prepared: Path, **config: Any) -> Any:
    """The arithmetic task with this changed."""
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "mine", **config}
    (folder / "mine.yaml").write_text(yaml.safe_dump(own))
    return load_tasks(spec(tmp_path, prepared, tasks=["mine"], include_path=folder))["mine"]


@pytest.mark.parametrize(
    ("template", "bos_token", "says"),
    [
        (CHATML, "<s>", r"token 0 is '<s>' \(0\) in '<s><\|im_start\|>.* should be '<\|im_start\|>' \(1\)"),
        # lm-eval knows a beginning that is there by the tokenizer's bos_token alone.
        ("<s>" + CHATML, None, r"token 1 is '<s>' \(0\) in '<s><s><\|im_start\|>.* should be '<\|im_start\|>' \(1\)"),
    ],
)
@pytest.mark.parametrize("config", [{}, {"description": "+", "num_fewshot": 2, "fewshot_split": "test"}])
def test_a_beginning_is_neither_added_nor_doubled(
    tmp_path: Path, prepared: Path, template: str, bos_token: str | None, says: str, config: dict[str, Any]
) -> None:
    model = beginning(tmp_path / "model", template, bos_token)
    lm = harness.load_model("it", model, harness.load_tokenizer("it", model), batch_size=4)
    task = asked(tmp_path, prepared, **config)
    harness.answer(lm, task, 3, 1)
    lm.add_bos_token = None  # what HFLM does unless told otherwise
    with pytest.raises(UserError, match="^task mine reads other token ids .* in prompt 1: " + says):
        harness.answer(lm, task, 3, 1)


def test_sampled_answers_are_the_seeds(tmp_path: Path, prepared: Path) -> None:
    folder = tmp_path / "evals"
    folder.mkdir()
    own = {"include": str(PROJECT / "evals/arithmetic/arithmetic.yaml"), "task": "mine"}
    sampled = {"until": [], "max_gen_toks": 24, "do_sample": True, "temperature": 1.5}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**own, "generation_kwargs": sampled}))
    found = []
    for seed in (1, 2, 1):
        run = spec(tmp_path, prepared, tasks=["mine"], include_path=folder, seed=seed)
        work(run)
        found.append([row["completion"] for row in read_records(run.output, "base", "mine")])
    assert found[0] == found[2]
    assert found[0] != found[1]
    assert json.loads((run.output / "settings.json").read_text())["seed"] == 1
