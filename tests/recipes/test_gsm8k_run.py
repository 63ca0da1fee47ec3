"""The recipe through the whole progression, on a random Qwen2 and a CPU: its own settings but for vLLM and size."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ratchet
from tests.recipes.conftest import COUNTS, write_problems

pytestmark = pytest.mark.slow

ON_A_CPU = [f"{stage}.trainer.use_cpu=true" for stage in ("sft", "dpo", "grpo")]
SMALL = [
    "sft.trainer.max_steps=2",
    "probe.train_prompts=4",
    "probe.decision=climb",
    "dpo.enabled=false",
    "grpo.trainer.use_vllm=false",
    "grpo.trainer.max_steps=2",
    "grpo.trainer.gradient_accumulation_steps=4",
    "grpo.trainer.max_completion_length=16",
    "grpo.selection.eval_steps=1",
]


def run(checkout: Path, model: Path, overrides: list[str], *arguments: str) -> str:
    """`ratchet run` with the recipe, which must succeed: what it prints."""
    settings = [part for override in [f"model.path={model}", *overrides] for part in ("-S", override)]
    done = ratchet(checkout, "run", "--recipe", "qwen2.5-0.5b-gsm8k", *arguments, *settings)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def checkout(fresh_checkout: Callable[..., Path], gsm8k: Path) -> Path:
    folder = fresh_checkout("recipe")
    done = write_problems("--from", gsm8k, project=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def result(checkout: Path, tiny_qwen: Path) -> dict[str, Any]:
    file = checkout / "result.json"
    run(checkout, tiny_qwen, [*ON_A_CPU, *SMALL], "--json", str(file))
    return json.loads(file.read_bytes())


def output(checkout: Path, result: dict[str, Any], stage: str) -> Path:
    return checkout / ".ratchet" / "stages" / f"{stage}-{result['stages'][stage]['key']}"


def test_a_dry_run_takes_every_setting_as_it_stands(checkout: Path, tiny_qwen: Path) -> None:
    shown = run(checkout, tiny_qwen, [*ON_A_CPU, "grpo.trainer.use_vllm=false"], "--dry-run")
    assert "vllm_mode: colocate" in shown
    assert "bf16: true" in shown
    assert "chains" not in shown


def test_without_vllm_it_is_said_before_anything_trains(checkout: Path, tiny_qwen: Path) -> None:
    settings = [part for override in [f"model.path={tiny_qwen}", *ON_A_CPU] for part in ("-S", override)]
    done = ratchet(checkout, "run", "--recipe", "qwen2.5-0.5b-gsm8k", "--dry-run", *settings)
    assert done.returncode == 2
    assert "grpo.trainer.use_vllm is true, but vllm is not installed here" in done.stderr


def test_every_model_answered_the_whole_test_set(result: dict[str, Any]) -> None:
    assert list(result["evaluation"]) == ["base", "sft", "grpo"]
    for scores in result["evaluation"].values():
        assert scores["gsm8k_ratchet"]["n"] == COUNTS["test"]
        assert scores["gsm8k_ratchet"].keys() >= {"acc", "answered", "flexible"}


def test_the_probe_saw_that_there_is_no_signal_and_was_overruled(result: dict[str, Any]) -> None:
    assert result["decision"]["outcome"] == "no_signal"
    assert result["decision"]["climbs"] is True


def test_grpo_asked_problems_of_the_train_split_and_taught_nothing(checkout: Path, result: dict[str, Any]) -> None:
    folder = output(checkout, result, "grpo")
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == {1, 2}
    assert all('End with a line "#### NUMBER"' in sample["prompt"] for sample in samples)
    metrics = json.loads((folder / "metrics.json").read_bytes())
    assert metrics["zero_variance"] == 1.0
    assert result["verdict"]["decision"] != "promote"
    assert result["promotion"] is None


def test_the_model_is_a_qwen2_in_bfloat16_that_ends_its_turn(checkout: Path, result: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = output(checkout, result, "grpo") / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.dtype is torch.bfloat16
    ends = tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id)
    assert sorted(ends) == ["<|endoftext|>", "<|im_end|>"]
