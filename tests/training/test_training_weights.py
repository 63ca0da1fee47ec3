"""The weights that training leaves: adapters, number types and references, with real TRL on the embedded model."""

import json

import pytest

from tasks.training import grpo, sft
from tasks.training.spec import GRPOSpec, TrainingSpec

GRPO = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 12}
ADAPTER = {"r": 8, "target_modules": "all-linear"}


@pytest.fixture
def grpo_spec_of(spec_of):
    return lambda trainer, **changed: GRPOSpec(**spec_of(trainer, **changed).model_dump())


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_an_adapter_is_trained_and_merged_into_a_model_that_stands_alone(spec_of, base):
    import torch

    spec = spec_of({"learning_rate": 1e-2}, lora=ADAPTER)
    sft.train(spec)
    assert not list((spec.output / "model").glob("adapter*"))
    before, after = weights(base), weights(spec.output / "model")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("proj" in name for name in changed)


@pytest.mark.parametrize("lora", [None, ADAPTER])
def test_a_learning_rate_of_zero_leaves_the_weights_as_they_were(grpo_spec_of, base, lora):
    import torch

    spec = grpo_spec_of({**GRPO, "learning_rate": 0.0, "beta": 0.1}, lora=lora)
    grpo.train(spec)
    before, after = weights(base), weights(spec.output / "model")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    history = [json.loads(line) for line in (spec.output / "history.jsonl").read_text().splitlines()]
    assert [entry["kl"] for entry in history] == pytest.approx([0, 0], abs=1e-6)


def test_a_reference_other_than_the_start_is_found_out(grpo_spec_of):
    """An adapter that is not zero at its start: the policy differs from the reference, which goes without it."""
    spec = grpo_spec_of(
        {**GRPO, "beta": 0.1, "logging_steps": 2},
        lora={"r": 8, "target_modules": "all-linear", "init_lora_weights": False},
    )
    with pytest.raises(RuntimeError, match="first step's KL divergence is"):
        grpo.train(spec)
    assert not (spec.output / "model").exists()


@pytest.mark.parametrize("stage", [sft, grpo])
@pytest.mark.parametrize(
    ("lora", "loading", "frozen", "trained"),
    [
        (None, {}, None, "float32"),
        (ADAPTER, {}, "bfloat16", "float32"),
        (None, {"dtype": "bfloat16"}, None, "bfloat16"),
        (ADAPTER, {"dtype": "float32"}, "float32", "float32"),
    ],
)
def test_what_is_trained_is_float32_unless_asked_otherwise(
    spec_of, grpo_spec_of, monkeypatch, stage, lora, loading, frozen, trained
):
    import torch

    trainers = []
    monkeypatch.setattr("tasks.training.stage.train_and_save", lambda trainer, *_, **__: trainers.append(trainer))
    arguments = {**(GRPO if stage is grpo else {}), "model_init_kwargs": loading}
    build = grpo_spec_of if stage is grpo else spec_of
    stage.train(build(arguments, dtype="bfloat16", lora=lora))
    weights = list(trainers[0].model.parameters())
    assert {weight.dtype for weight in weights if weight.requires_grad} == {getattr(torch, trained)}
    assert {weight.dtype for weight in weights if not weight.requires_grad} == (
        {getattr(torch, frozen)} if frozen else set()
    )


def test_a_model_saved_in_bfloat16_is_the_one_trained_in_float32(spec_of):
    import torch

    small = {"learning_rate": 1e-5}
    specs = [spec_of(small, dtype=dtype) for dtype in ("float32", "bfloat16")]
    for spec in specs:
        sft.train(spec)
    exact, rounded = (weights(spec.output / "model") for spec in specs)
    assert {weight.dtype for weight in rounded.values()} == {torch.bfloat16}
    assert all(torch.equal(weight.bfloat16(), rounded[name]) for name, weight in exact.items())
    assert json.loads((specs[1].output / "model" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.fixture(scope="module")
def warm(tmp_path_factory, base, data, quick):
    """A model that earns some rewards; of one that earns none, GRPO changes nothing."""
    output = tmp_path_factory.mktemp("warm")
    trainer = {**quick, "max_steps": 20, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    sft.train(TrainingSpec(model=str(base), data=data, output=output, seed=3, trainer=trainer))
    return output / "model"


@pytest.mark.parametrize("lora", [None, ADAPTER])
def test_grpo_in_mixed_precision_starts_at_its_reference_and_moves(grpo_spec_of, warm, lora):
    import torch

    mixed = {"bf16": True, "use_cpu": True, "beta": 0.05, "learning_rate": 1e-3, "max_steps": 3}
    batch = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 24}
    spec = grpo_spec_of({**mixed, **batch}, model=str(warm), dtype="bfloat16", lora=lora)
    grpo.train(spec)
    history = [json.loads(line) for line in (spec.output / "history.jsonl").read_text().splitlines()]
    assert history[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert history[2]["kl"] > 1e-5
    assert {weight.dtype for weight in weights(spec.output / "model").values()} == {torch.bfloat16}


def test_a_diverged_loss_stops_training(spec_of):
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        sft.train(spec_of({"learning_rate": 1e30, "max_steps": 4, "max_grad_norm": 0.0}))


def test_merging_gives_the_logits_of_the_adapter(base):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from tasks.training.model import merged

    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).eval()
    ids = torch.arange(4, 16).unsqueeze(0)
    with torch.no_grad():
        expected = model(ids).logits
        with model.disable_adapter():
            untouched = model(ids).logits
        found = merged(model, torch.float32)(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(untouched, expected, atol=0.1)


def test_an_adapter_of_a_bfloat16_model_is_added_before_anything_is_rounded(base):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from tasks.training.model import merged

    torch.manual_seed(0)
    start = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model = get_peft_model(start, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    pair = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = layer.base_layer.weight.float() + layer.scaling["default"] * pair
    found = merged(model, torch.bfloat16).model.layers[0].self_attn.q_proj.weight
    assert torch.equal(found, expected.bfloat16())
