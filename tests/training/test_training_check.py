"""The check before a run: every fault of every stage, in a process of its own."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.config.schema import Selection
from tasks.errors import UserError
from tasks.training.check import check
from tasks.training.spec import CheckSpec

STAGES = ("sft", "dpo", "grpo")


@pytest.fixture
def planned(tmp_path, base, quick):
    """All stages before anything is there, with this much changed: `trainer` is added to the quick arguments."""

    def build(**changed) -> CheckSpec:
        nowhere = {"model": str(base), "data": tmp_path / "data", "output": tmp_path / "output", "seed": 1}
        stages = {}
        for name in STAGES:
            pairs = {"pairs": tmp_path / "pairs.jsonl"} if name == "dpo" else {}
            fields = {**nowhere, **pairs, **changed.get(name, {})}
            stages[name] = {**fields, "trainer": {**quick, **fields.get("trainer", {})}}
        return CheckSpec(**stages)

    return build


@pytest.fixture
def prepared(data, tmp_path):
    """A dataset of its own, to be changed."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes((data / "train.jsonl").read_bytes())
    (folder / "dev.jsonl").write_text("")
    return folder


def faults(spec: CheckSpec) -> list[str]:
    with pytest.raises(UserError) as error:
        check(spec)
    return str(error.value).split("\n")


def test_what_can_be_trained_passes_with_and_without_data(planned, prepared, tmp_path):
    check(planned())
    check(planned(**{name: {"data": prepared} for name in STAGES}))
    check(CheckSpec())
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"]


def test_a_process_tells_all_faults_of_all_stages_and_nothing_else(planned, tmp_path):
    spec = planned(
        sft={"trainer": {"learning_rat": 1, "hub_token": "hf_secret"}, "lora": {"rank": 8}},
        dpo={"trainer": {"learning_rat": 1}, "lora": {"rank": 8}},
        grpo={"trainer": {"learning_rat": 1}, "reward": tmp_path / "reward.py"},
    )
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "tasks.training.check", str(path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    hint = "has no argument 'learning_rat' (did you mean 'learning_rate'?)"
    names, unasked, sft_adapter, dpo, dpo_adapter, grpo, reward = process.stderr.splitlines()
    assert (names, dpo, grpo) == (
        f"sft.trainer: SFTConfig {hint}",
        f"dpo.trainer: DPOConfig {hint}",
        f"grpo.trainer: GRPOConfig {hint}",
    )
    assert unasked == (
        "sft.trainer.hub_token is not for a run to set: set HF_TOKEN in the environment, for parameters are stored and"
        " shown"
    )
    assert sft_adapter.startswith("sft.lora: LoraConfig rejects its arguments:")
    assert dpo_adapter.startswith("dpo.lora: LoraConfig rejects its arguments:")
    assert reward.startswith(f"grpo.reward: {tmp_path / 'reward.py'} is not a Python file")


@pytest.mark.parametrize(
    ("stage", "trainer", "message"),
    [
        ("grpo", {"num_generations": 1}, "grpo.trainer: GRPOConfig rejects"),
        ("dpo", {"loss_type": ["sigmoid"], "loss_weights": [1, 2]}, "dpo.trainer: DPOConfig rejects"),
        ("dpo", {"beta": 0}, "dpo.trainer.beta is 0, and DPO learns nothing unless it is above 0"),
        ("dpo", {"logging_first_step": False}, "dpo.trainer.logging_first_step is not for a run to set"),
    ],
)
def test_values_are_what_trl_takes_and_the_stage_can_use(planned, stage, trainer, message):
    (fault,) = faults(planned(**{stage: {"trainer": trainer}}))
    assert fault.startswith(message)


def test_prepared_rows_are_enough_for_each_stage(planned, prepared):
    rows = [json.loads(line) for line in (prepared / "train.jsonl").read_text().splitlines()]
    for row in rows:
        del row["solution"]
    rows[5] |= {"chosen": "#1", "rejected": "#1"}
    (prepared / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    large = {"per_device_train_batch_size": 1024, "num_generations": 8}
    assert faults(
        planned(sft={"data": prepared}, dpo={"data": prepared}, grpo={"data": prepared, "trainer": large})
    ) == [
        f"sft: {prepared}: no row of the train split has a `solution`, so there is nothing to imitate",
        "dpo: row 'row-5' of source 'chains': `chosen` and `rejected` are the same text, which prefers nothing; correct"
        " one of them or remove both",
        f"grpo: {prepared}: 64 rows of the train split have a `verifier` and an `answer`, but one generation batch"
        " takes 128 prompts (1024 completions, 8 of each); add problems or make"
        " grpo.trainer.per_device_train_batch_size smaller",
    ]


def test_a_choice_of_the_checkpoint_needs_dev_rows_that_can_be_verified(planned, prepared):
    selected = {"data": prepared, "selection": Selection()}
    needed = "grpo.selection needs dev rows: give a source a dev share, or set grpo.selection: false"
    assert faults(planned(grpo=selected)) == [needed]
    first = json.loads((prepared / "train.jsonl").read_text().splitlines()[0])
    (prepared / "dev.jsonl").write_text(json.dumps({**first, "verifier": None}) + "\n")
    assert faults(planned(grpo=selected)) == [needed]
    (prepared / "dev.jsonl").write_text(json.dumps(first) + "\n")
    check(planned(grpo=selected))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward(completion, problem):\n    return 1 / (1 + len(completion))\n", None),
        ("def score(completion, problem):\n    return 1.0\n", "has no function reward"),
        ("def reward(completion, problem):\n    return completion['x']\n", "tried on the completion"),
    ],
)
def test_a_reward_of_the_users_is_loaded_and_asked(planned, prepared, tmp_path, source, message):
    path = tmp_path / "reward.py"
    path.write_text(source)
    spec = planned(grpo={"data": prepared, "reward": path})
    if message is None:
        check(spec)
    else:
        (fault,) = faults(spec)
        assert fault.startswith(f"grpo.reward: {path}")
        assert message in fault


def test_a_stage_that_there_is_not():
    with pytest.raises(ValidationError, match="ppo"):
        CheckSpec(ppo={})
