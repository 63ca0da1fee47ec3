"""One seed governs a training stage: the order of rows, an adapter's weights, dropout and the sampled completions."""

import json

import pytest

from tasks.training import grpo, sft
from tasks.training.spec import GRPOSpec

DROPOUT = {"r": 8, "target_modules": "all-linear", "lora_dropout": 0.1}


def history(spec):
    """What was logged, without how long it took."""
    rows = [json.loads(line) for line in (spec.output / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "step_time"} for row in rows]


@pytest.mark.parametrize("lora", [None, DROPOUT])
def test_sft_is_its_seed(spec_of, lora):
    specs = [spec_of({"learning_rate": 1e-3}, lora=lora, seed=seed) for seed in (1, 2, 1)]
    for spec in specs:
        sft.train(spec)
    first, other, again = [(spec.output / "model" / "model.safetensors").read_bytes() for spec in specs]
    assert first == again
    assert first != other
    assert history(specs[0]) == history(specs[2])


@pytest.mark.parametrize("lora", [None, DROPOUT])
def test_grpo_is_its_seed(spec_of, lora):
    batch = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 12}
    samples = []
    specs = [spec_of(batch, lora=lora, seed=seed) for seed in (1, 2, 1)]
    for spec in specs:
        grpo.train(GRPOSpec(**spec.model_dump(), samples_per_step=16))
        samples.append((spec.output / "samples.jsonl").read_bytes())
    assert samples[0] == samples[2]
    assert samples[0] != samples[1]
    assert history(specs[0]) == history(specs[2])
