"""SFT, then GRPO, as processes of their own, twice in two places: what a stage writes, and that it repeats."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SFT_STEPS, GRPO_STEPS = 20, 3
"""Enough of SFT for some rewards; with none, GRPO would learn nothing and its tests would show nothing."""


def write_spec(folder: Path, stage: str, **spec: object) -> Path:
    output = folder / stage
    output.mkdir(parents=True)
    path = folder / f"{stage}.json"
    path.write_text(json.dumps({"output": str(output), "seed": 3, **spec}))
    return path


@pytest.fixture(scope="module")
def stages(tmp_path_factory, base, data, quick):
    """Two progressions at the same time: folders `one` and `two`, each with the outputs `sft` and `grpo`."""
    sft = {**quick, "max_steps": SFT_STEPS, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    grpo = {
        **quick,
        "max_steps": GRPO_STEPS,
        "per_device_train_batch_size": 32,
        "num_generations": 4,
        "max_completion_length": 24,
        "learning_rate": 1e-3,
        "beta": 0.05,
    }
    folders = [tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second-elsewhere")]
    logs: list[str] = []
    for stage, trainer, models in (
        ("sft", sft, [base, base]),
        ("grpo", grpo, [folder / "sft" / "model" for folder in folders]),
    ):
        processes = []
        for folder, model in zip(folders, models, strict=True):
            own = {"samples_per_step": 5} if stage == "grpo" else {}
            spec = write_spec(folder, stage, model=str(model), data=str(data), trainer=trainer, **own)
            command = [sys.executable, "-m", f"tasks.training.{stage}", str(spec)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        logs.append(outputs[0])
    return SimpleNamespace(one=folders[0], two=folders[1], sft_log=logs[0], grpo_log=logs[1])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_the_output_is_complete_and_nothing_else(stages, stage):
    expected = {"model", "history.jsonl", "metrics.json", "alarms.jsonl", "contract.json"} | (
        {"samples.jsonl"} if stage == "grpo" else set()
    )
    assert {path.name for path in (stages.one / stage).iterdir()} == expected


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_the_same_spec_gives_the_same_bytes_elsewhere(stages, stage):
    first, second = (
        {p.name: p.read_bytes() for p in (f / stage / "model").iterdir()} for f in (stages.one, stages.two)
    )
    assert first == second
    assert not any(str(stages.one).encode() in content for content in first.values())


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_history_has_one_line_a_step_and_stdout_says_the_same(stages, stage):
    history = lines(stages.one / stage / "history.jsonl")
    steps = SFT_STEPS if stage == "sft" else GRPO_STEPS
    assert [entry["step"] for entry in history] == list(range(1, steps + 1))
    assert all(isinstance(value, int | float) for entry in history for value in entry.values())
    printed = (stages.sft_log if stage == "sft" else stages.grpo_log).splitlines()
    first = "sft: 64 rows, 20 steps" if stage == "sft" else "grpo: 64 prompts, 8 x 4 completions at a time, 3 steps"
    assert [line.split("  ")[0] for line in printed] == [first, *(f"step {n}/{steps}" for n in range(1, steps + 1))]


def test_history_of_grpo_has_what_the_report_and_the_alarms_need(stages):
    history = lines(stages.one / "grpo" / "history.jsonl")
    needed = {"reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "completions/clipped_ratio"}
    needed |= {
        "entropy",
        "kl",
        "clip_ratio/region_mean",
        "verdict/right",
        "verdict/no_answer",
        "verdict/infrastructure",
    }
    for entry in history:
        assert needed <= entry.keys()
        verdicts = {key: value for key, value in entry.items() if key.startswith("verdict/")}
        assert sum(verdicts.values()) == 32
        assert entry["reward"] == pytest.approx(verdicts["verdict/right"] / 32)


def test_the_kl_divergence_starts_at_zero_and_grows_as_the_policy_moves(stages):
    kl = [entry["kl"] for entry in lines(stages.one / "grpo" / "history.jsonl")]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[2] > 1e-4


def test_metrics_are_numbers_and_count_the_rows(stages):
    for stage in ("sft", "grpo"):
        metrics = json.loads((stages.one / stage / "metrics.json").read_text())
        assert metrics["rows"] == 64
        assert metrics["train_runtime"] > 0
        assert all(isinstance(value, int | float) for value in metrics.values())


def test_samples_are_of_different_prompts_and_carry_their_verdict(stages):
    samples = lines(stages.one / "grpo" / "samples.jsonl")
    assert [sample["step"] for sample in samples] == [1] * 5 + [2] * 5 + [3] * 5
    assert len({sample["id"] for sample in samples[:5]}) == 5
    for sample in samples:
        assert set(sample) == {"step", "id", "prompt", "completion", "reward", "score", "status", "answer"}
        assert (sample["status"] == "right") == (sample["score"] == 1)
        if sample["status"] == "right":
            assert f"#{sample['answer']}" in sample["completion"]


def test_the_model_stands_alone(stages, base):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = stages.one / "grpo" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(base).chat_template
    assert model.config.use_cache
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    before = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "7-5+5"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    generated = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(generated, skip_special_tokens=True).strip()


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_a_users_mistake_is_one_message_and_exit_code_2(tmp_path, base, stage):
    spec = write_spec(tmp_path, stage, model=str(base), data=str(tmp_path / "nowhere"), trainer={})
    process = subprocess.run(
        [sys.executable, "-m", f"tasks.training.{stage}", str(spec)], capture_output=True, text=True
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert "nowhere" in process.stderr
    assert "Traceback" not in process.stderr
