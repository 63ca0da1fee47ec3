"""What training refuses to start with, and adapters, in this process: each case is real TRL on the embedded model."""

import dataclasses
import json
import shutil

import pytest

from tasks.errors import UserError
from tasks.problems import Problem, read_split
from tasks.rewards import Status
from tasks.training import grpo, sft
from tasks.training.spec import TrainingSpec

GRPO = {"per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 12}


def rewritten(data, folder, change) -> None:
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    (folder / "train.jsonl").write_text("".join(json.dumps(change(row)) + "\n" for row in rows))


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


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
        stage.train(spec_of(trainer))
    assert "hf_secret" not in str(error.value)


def test_no_argument_of_the_hub_is_taken():
    from trl import GRPOConfig, SFTConfig

    from tasks.training.arguments import REFUSED

    fields = {field.name for config in (SFTConfig, GRPOConfig) for field in dataclasses.fields(config)}
    assert {name for name in fields if "hub" in name} == REFUSED.keys()


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

    folder = tmp_path / "pickled"
    shutil.copytree(base, folder)
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="safetensors"):
        sft.train(spec_of(model=str(folder)))


def test_grpo_needs_something_to_verify(spec_of, data, tmp_path):
    rewritten(data, tmp_path, without("answer"))
    with pytest.raises(UserError, match="0 rows of the train split have a `verifier` and an `answer`"):
        grpo.train(spec_of(GRPO, data=tmp_path))


def test_an_adapter_is_trained_and_merged_into_a_model_that_stands_alone(spec_of, base):
    import torch

    spec = spec_of({"learning_rate": 1e-2}, lora={"r": 8, "target_modules": "all-linear"})
    sft.train(spec)
    assert not list((spec.output / "model").glob("adapter*"))
    before, after = weights(base), weights(spec.output / "model")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("proj" in name for name in changed)


@pytest.mark.parametrize("lora", [None, {"r": 8, "target_modules": "all-linear"}])
def test_a_learning_rate_of_zero_leaves_the_weights_as_they_were(spec_of, base, lora):
    import torch

    spec = spec_of({**GRPO, "learning_rate": 0.0, "beta": 0.1}, lora=lora)
    grpo.train(spec)
    before, after = weights(base), weights(spec.output / "model")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    history = [json.loads(line) for line in (spec.output / "history.jsonl").read_text().splitlines()]
    assert [entry["kl"] for entry in history] == pytest.approx([0, 0], abs=1e-6)


def test_a_reference_other_than_the_start_is_found_out(spec_of):
    """An adapter that is not zero at its start: the policy differs from the reference, which goes without it."""
    spec = spec_of(
        {**GRPO, "beta": 0.1, "logging_steps": 2},
        lora={"r": 8, "target_modules": "all-linear", "init_lora_weights": False},
    )
    with pytest.raises(RuntimeError, match="first step's KL divergence is"):
        grpo.train(spec)
    assert not (spec.output / "model").exists()


ADAPTER = {"r": 8, "target_modules": "all-linear"}


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
def test_what_is_trained_is_float32_unless_asked_otherwise(spec_of, monkeypatch, stage, lora, loading, frozen, trained):
    import torch

    trainers = []
    monkeypatch.setattr("tasks.training.stage.train_and_save", lambda trainer, *_: trainers.append(trainer))
    arguments = {**(GRPO if stage is grpo else {}), "model_init_kwargs": loading}
    stage.train(spec_of(arguments, dtype="bfloat16", lora=lora))
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
def test_grpo_in_mixed_precision_starts_at_its_reference_and_moves(spec_of, warm, lora):
    import torch

    mixed = {"bf16": True, "use_cpu": True, "beta": 0.05, "learning_rate": 1e-3, "max_steps": 3}
    batch = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 24}
    spec = spec_of({**mixed, **batch}, model=str(warm), dtype="bfloat16", lora=lora)
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


def problem(number: int, **changed) -> Problem:
    fields = {"id": str(number), "source": "s", "prompt": f"{number}+0", "answer": str(number), "verifier": "numeric"}
    return Problem(**{**fields, **changed})


class State:
    """What TRL passes on of the trainer's state."""

    global_step, is_world_process_zero = 4, True


def test_the_reward_is_the_verdict_and_every_status_is_counted(tmp_path):
    metrics: dict[str, float] = {}
    completions = [[{"role": "assistant", "content": text}] for text in ("#1", "#5", "hm", "#2")]
    reward = grpo.reward_function([problem(1), problem(2)], tmp_path / "samples.jsonl", 2)
    scores = reward(
        completions=completions, row=[0, 0, 1, 1], trainer_state=State, log_metric=metrics.__setitem__, prompts=[]
    )
    assert scores == [1.0, 0.0, 0.0, 1.0]
    assert metrics.keys() == {f"verdict/{status}" for status in Status}
    assert {key: value for key, value in metrics.items() if value} == {
        "verdict/right": 2,
        "verdict/wrong": 1,
        "verdict/no_answer": 1,
    }
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [(s["step"], s["id"], s["completion"]) for s in samples] == [(5, "1", "#1"), (5, "2", "hm")]


def test_what_could_not_be_verified_is_no_reward_and_a_whole_batch_of_it_an_error(tmp_path, monkeypatch):
    from tasks.rewards import numeric

    judge = numeric.verify

    def sometimes_broken(completion, item):
        if item.id == "1":
            raise OSError("the disk is full")
        return judge(completion, item)

    monkeypatch.setattr(numeric, "verify", sometimes_broken)
    reward = grpo.reward_function([problem(1), problem(2)], tmp_path / "samples.jsonl", 0)
    completions = [[{"role": "assistant", "content": "#2"}]] * 2
    metrics: dict[str, float] = {}
    given = {"completions": completions, "trainer_state": State, "log_metric": metrics.__setitem__}
    assert reward(row=[0, 1], **given) == [None, 1.0]
    assert metrics["verdict/infrastructure"] == 1
    with pytest.raises(RuntimeError, match="no completion of the batch could be verified: OSError: the disk is full"):
        reward(row=[0, 0], **given)
