"""What training refuses to start with, in this process: each case is real TRL on the embedded model."""

import dataclasses
import json
import shutil

import pytest

from tasks.errors import UserError
from tasks.problems import read_split
from tasks.training import grpo, sft
from tasks.training.spec import GRPOSpec

GRPO = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 12}


def started(stage, spec) -> None:
    """Run the stage with the spec, as one of its own kind."""
    stage.train(GRPOSpec(**spec.model_dump()) if stage is grpo else spec)


def rewritten(data, folder, change) -> None:
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    (folder / "train.jsonl").write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def without(*keys):
    return lambda row: {key: value for key, value in row.items() if key not in keys}


def test_sft_needs_a_solution(spec_of, data, tmp_path):
    rewritten(data, tmp_path, without("solution"))
    with pytest.raises(UserError, match="no row of the train split has a `solution`"):
        sft.train(spec_of(data=tmp_path))


def test_sft_refuses_to_cut_rows(spec_of, data):
    with pytest.raises(
        UserError, match=r"max_length is 20 tokens, and \d+ of 64 rows are longer, up to 2\d \(row row-"
    ) as error:
        sft.train(spec_of({"max_length": 20}))
    longest = max(read_split(data, "train"), key=lambda row: len(row.prompt) + len(row.solution))
    # One token a character; two roles and two ends of a turn.
    assert f"up to {len(longest.prompt) + len(longest.solution) + 4} " in str(error.value)


@pytest.fixture
def unending(base, tmp_path):
    """The base with a template that closes an answer with a token other than the one that the model stops at."""
    folder = tmp_path / "unending"
    shutil.copytree(base, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("'<|end|>'", "'<|user|>'"))
    return folder


def test_sft_refuses_answers_without_an_end(spec_of, unending):
    with pytest.raises(UserError, match=r"would not learn to stop: it ends at <\|end\|>.*<\|user\|>'; set sft"):
        sft.train(spec_of(model=str(unending)))


def test_sft_takes_the_end_that_eos_token_names_and_the_model_stops_there(spec_of, unending):
    spec = spec_of({"eos_token": "<|user|>"}, model=str(unending))
    sft.train(spec)
    ends = json.loads((spec.output / "model" / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(ends) == [1, 2]
    tokenizer = json.loads((spec.output / "model" / "tokenizer_config.json").read_text())
    assert tokenizer["eos_token"] == "<|user|>"  # noqa: S105


def test_a_chat_template_is_needed_and_can_be_given(spec_of, base, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(base, bare)
    template = (bare / "chat_template.jinja").rename(tmp_path / "given.jinja")
    with pytest.raises(UserError, match=r"has no chat template.*chat_template_path"):
        sft.train(spec_of(model=str(bare)))
    spec = spec_of({"chat_template_path": str(template)}, model=str(bare))
    sft.train(spec)
    assert (spec.output / "model" / "chat_template.jinja").read_text() == template.read_text()


@pytest.mark.parametrize(
    ("stage", "trainer", "message"),
    [
        (sft, {"learning_rat": 1}, r"SFTConfig has no argument 'learning_rat' \(did you mean 'learning_rate'\?\)$"),
        (sft, {"seed": 1}, "sft.trainer.seed is not for a run to set: the stage itself sets it"),
        (sft, {"report_to": "wandb"}, "sft.trainer.report_to is not for a run to set"),
        (sft, {"hub_token": "hf_secret"}, "^sft.trainer.hub_token is not for a run to set: set HF_TOKEN in"),
        (sft, {"model_init_kwargs": {"token": "hf_secret"}}, "^sft.trainer.model_init_kwargs.token .*: set HF_TOKEN"),
        (sft, {"model_init_kwargs": "hf_secret"}, "^sft.trainer.model_init_kwargs: expected keys and values"),
        (sft, {"push_to_hub": True}, "sft.trainer.push_to_hub .*: a stage uploads nothing"),
        (grpo, {"log_completions_hub_repo": "me/rows"}, "grpo.trainer.log_completions_hub_repo .*: a stage uploads"),
        (grpo, {"remove_unused_columns": True}, "grpo.trainer.remove_unused_columns is not for a run to set"),
        (grpo, {**GRPO, "num_generations": 5}, r"generation_batch_size \(16\) must be divisible by.*\(5\).*per_device"),
        (grpo, {**GRPO, "num_generations": 1}, "at least 2 generations"),
        (grpo, {**GRPO, "per_device_train_batch_size": 512}, "64 rows of the train split.*takes 128 prompts"),
        (grpo, {**GRPO, "eval_strategy": "steps"}, "grpo: the trainer cannot be set up.*eval_dataset"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_trained_with(spec_of, stage, trainer, message):
    with pytest.raises(UserError, match=message) as error:
        started(stage, spec_of(trainer))
    assert "hf_secret" not in str(error.value)


def test_no_argument_of_the_hub_is_taken():
    from trl import GRPOConfig, SFTConfig

    from tasks.training.arguments import REFUSED

    fields = {field.name for config in (SFTConfig, GRPOConfig) for field in dataclasses.fields(config)}
    assert {name for name in fields if "hub" in name} == REFUSED.keys() - {"data_seed"}


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 8}, "sft.lora: LoraConfig rejects.*rank"),
        ({"target_modules": ["nowhere"]}, "sft: the trainer cannot be set up.*nowhere"),
        ({"target_modules": ["lm_head"]}, "sft: the trainer cannot be set up.*lm_head"),
    ],
)
def test_adapters_that_cannot_be_trained(spec_of, lora, message):
    with pytest.raises(UserError, match=message):
        sft.train(spec_of(lora=lora))


def test_a_model_that_is_not_there(spec_of, tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json"):
        sft.train(spec_of(model=str(tmp_path)))


def test_weights_that_are_no_safetensors_are_not_loaded(spec_of, base, tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = tmp_path / "pickled"
    shutil.copytree(base, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="safetensors"):
        sft.train(spec_of(model=str(folder)))


def test_grpo_needs_something_to_verify(spec_of, data, tmp_path):
    rewritten(data, tmp_path, without("answer"))
    with pytest.raises(UserError, match="0 rows of the train split have a `verifier` and an `answer`"):
        started(grpo, spec_of(GRPO, data=tmp_path))
