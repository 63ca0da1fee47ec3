"""The check before a run: every fault of every stage, in a process of its own."""

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from tasks.errors import UserError
from tasks.training.check import check
from tasks.training.spec import CheckSpec


@pytest.fixture
def planned(tmp_path, base, quick):
    """Both stages before anything is there, with this much changed: `trainer` is added to the quick arguments."""

    def build(**changed) -> CheckSpec:
        nowhere = {"model": str(base), "data": tmp_path / "data", "output": tmp_path / "output", "seed": 1}
        stages = {}
        for name in ("sft", "grpo"):
            fields = {**nowhere, **changed.get(name, {})}
            stages[name] = {**fields, "trainer": {**quick, **fields.get("trainer", {})}}
        return CheckSpec(stages=stages)

    return build


def faults(spec: CheckSpec) -> list[str]:
    with pytest.raises(UserError) as error:
        check(spec)
    return str(error.value).split("\n")


def test_what_can_be_trained_passes_with_and_without_data(planned, data, tmp_path):
    check(planned())
    check(planned(sft={"data": data}, grpo={"data": data}))
    check(CheckSpec(stages={}))
    assert not list(tmp_path.iterdir())


def test_a_process_tells_all_faults_of_both_stages_and_nothing_else(planned, tmp_path):
    spec = planned(
        sft={"trainer": {"learning_rat": 1, "hub_token": "hf_secret"}, "lora": {"rank": 8}},
        grpo={"trainer": {"learning_rat": 1}},
    )
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    command = [sys.executable, "-m", "tasks.training.check", str(path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    hint = "has no argument 'learning_rat' (did you mean 'learning_rate'?)"
    *names, adapter, last = process.stderr.splitlines()
    assert names == [
        f"sft.trainer: SFTConfig {hint}",
        "sft.trainer.hub_token is not for a run to set: set HF_TOKEN in the environment, for parameters are stored and"
        " shown",
    ]
    assert adapter.startswith("sft.lora: LoraConfig rejects its arguments:")
    assert last == f"grpo.trainer: GRPOConfig {hint}"


def test_values_are_what_trl_takes(planned):
    assert faults(planned(grpo={"trainer": {"num_generations": 1}}))[0].startswith("grpo.trainer: GRPOConfig rejects")


def test_prepared_rows_are_enough_for_each_stage(planned, data, tmp_path):
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    for row in rows:
        del row["solution"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    large = {"per_device_train_batch_size": 1024, "num_generations": 8}
    assert faults(planned(sft={"data": tmp_path}, grpo={"data": tmp_path, "trainer": large})) == [
        f"sft: {tmp_path}: no row of the train split has a `solution`, so there is nothing to imitate",
        f"grpo: {tmp_path}: 64 rows of the train split have a `verifier` and an `answer`, but one generation batch"
        " takes 128 prompts (1024 completions, 8 of each); add problems or make"
        " grpo.trainer.per_device_train_batch_size smaller",
    ]


def test_a_stage_that_there_is_not():
    with pytest.raises(ValidationError, match="'sft' or 'grpo'"):
        CheckSpec(stages={"dpo": {}})
