"""GRPO with a reward of the user's, with shuffled rewards, and with prompts set aside and probed again: real runs."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from tasks.config.schema import GRPO_ALARMS, Alarm
from tasks.errors import UserError
from tasks.probing.attempts import write
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.problems import read_split
from tasks.rewards import Status
from tasks.training import grpo, sft
from tasks.training.spec import GRPOSpec, TrainingSpec

GRPO = {
    "per_device_train_batch_size": 32,
    "num_generations": 4,
    "max_completion_length": 24,
    "learning_rate": 1e-3,
    "max_steps": 4,
}
ALARMS = {name: Alarm(**fields) for name, fields in GRPO_ALARMS.items()}


@pytest.fixture(scope="module")
def warm(tmp_path_factory, base, data, quick):
    """A model that is right about half of the time."""
    output = tmp_path_factory.mktemp("warm")
    trainer = {**quick, "max_steps": 10, "per_device_train_batch_size": 16, "learning_rate": 5e-4}
    sft.train(TrainingSpec(model=str(base), data=data, output=output, seed=3, trainer=trainer))
    return output


@pytest.fixture
def climb(spec_of, warm):
    """Run GRPO with this much changed, to a namespace of what it wrote."""

    def run(trainer=None, **changed) -> SimpleNamespace:
        fields = {"model": str(warm / "model"), "parent_contract": warm / "contract.json", "health": ALARMS, **changed}
        spec = GRPOSpec(**{**spec_of({**GRPO, **(trainer or {})}).model_dump(), "samples_per_step": 32, **fields})
        grpo.train(spec)

        def lines(name):
            return [json.loads(line) for line in (spec.output / name).read_text().splitlines()]

        history = lines("history.jsonl")
        return SimpleNamespace(
            output=spec.output,
            logs=[entry for entry in history if "reward" in entry],
            probes=[entry for entry in history if "difficulty/active" in entry],
            samples=lines("samples.jsonl"),
            alarms=lines("alarms.jsonl"),
            metrics=json.loads((spec.output / "metrics.json").read_text()),
        )

    return run


@pytest.fixture
def probed(tmp_path, data):
    """A probe's file that finds the first 20 rows solved, the next 20 out of reach and 10 more in between."""
    path = tmp_path / "probed.jsonl"
    attempts = [
        Attempt(completion="", tokens=5, ended=True, score=score, status=Status.RIGHT if score else Status.WRONG)
        for score in (1.0, 0.0)
    ]
    right, wrong = attempts
    outcomes = [[right] * 4] * 20 + [[wrong] * 4] * 20 + [[right, wrong] * 2] * 10
    rows = read_split(data, "train")
    write(
        path, [ProbedPrompt(id=row.id, source=row.source, attempts=o) for row, o in zip(rows, outcomes, strict=False)]
    )
    return path


def test_a_reward_that_is_hacked_rises_and_what_is_verified_does_not(climb, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def reward(completion: str, problem) -> float:\n    return min(completion.count('-') / 16, 1.0)\n")
    run = climb({"max_steps": 8}, reward=own, health={})
    first, last = run.logs[0], run.logs[-1]
    assert last["reward"] > first["reward"] + 1 / 16
    assert first["verified"] > 0
    assert last["verified"] <= first["verified"] - 0.1
    for sample in run.samples:
        assert sample["reward"] == min(sample["completion"].count("-") / 16, 1)
        assert (sample["score"] == 1) == (sample["status"] == "right")
    for entry in run.logs:
        assert entry["verified"] == pytest.approx(entry["verdict/right"] / 32)
        assert entry["rewards/reward/mean"] == pytest.approx(entry["reward"])


def test_without_one_the_reward_is_what_is_verified_and_said_once(climb):
    run = climb({"max_steps": 1})
    assert "verified" not in run.logs[0]
    assert run.logs[0]["reward"] == pytest.approx(run.logs[0]["verdict/right"] / 32)


def test_a_reward_that_cannot_be_used_stops_the_stage_before_the_model_is_loaded(climb, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def reward(completion, problem):\n    return completion\n")
    with pytest.raises(UserError, match=r"^grpo.reward: .*own\.py: tried on the completion .* no number from 0 to 1"):
        climb(reward=own, model=str(tmp_path / "nowhere"))


def test_a_control_trains_on_shuffled_rewards_shows_the_true_ones_and_runs_to_its_end(climb):
    sensitive = {**ALARMS, "truncated": Alarm(threshold=-1, patience=1, action="stop")}
    run = climb(control="random-reward", health=sensitive)
    assert [entry["step"] for entry in run.logs] == [1, 2, 3, 4]
    assert {alarm["action"] for alarm in run.alarms if alarm["alarm"] == "truncated"} == {"warn"}
    assert run.metrics["stopped_by_alarm"] == 0
    for step, entry in enumerate(run.logs, start=1):
        samples = [sample for sample in run.samples if sample["step"] == step]
        rewards, scores = ([sample[name] for sample in samples] for name in ("reward", "score"))
        assert Counter(rewards) == Counter(scores)
        assert entry["verified"] == pytest.approx(sum(scores) / 32)
        assert entry["reward"] == pytest.approx(entry["verified"])
    assert [s["reward"] for s in run.samples] != [s["score"] for s in run.samples]


def test_an_alarm_that_stops_a_run_stops_it_when_it_is_no_control(climb):
    run = climb(health={"truncated": Alarm(threshold=-1, patience=1, action="stop")})
    assert run.metrics["stopped_by_alarm"] == 1
    assert len(run.logs) == 1


def test_prompts_that_teach_nothing_are_not_trained_on_and_the_steps_stay(climb, probed):
    run = climb({"max_steps": 3}, probed=probed, difficulty={})
    assert [entry["step"] for entry in run.logs] == [1, 2, 3]
    active = {f"row-{number}" for number in range(40, 64)}
    groups = [run.samples[start : start + 4] for start in range(0, 96, 4)]
    taken = [group[0]["id"] for group in groups]
    assert all({sample["id"] for sample in group} == {id_} for group, id_ in zip(groups, taken, strict=True))
    assert set(taken) == active
    assert set(taken[:10]) == {f"row-{number}" for number in range(40, 50)}
    said = json.loads((run.output / "difficulty.json").read_text())
    assert (said["prompts"], said["active"], said["unprobed"]) == (64, 24, 14)
    assert said["solved"] == [f"chains/row-{number}" for number in range(20)]
    assert said["unsolved"] == [f"chains/row-{number}" for number in range(20, 40)]
    # Of four attempts, two right: a group of four is never all the same.
    assert said["zero_variance_before"] == pytest.approx(40 / 50)
    assert run.metrics["zero_variance_before"] == pytest.approx(40 / 50)
    assert run.metrics["zero_variance"] == pytest.approx(
        sum(entry["frac_reward_zero_std"] for entry in run.logs) / len(run.logs)
    )
    assert (run.metrics["set_aside"], run.metrics["rows"]) == (40, 24)


def test_epochs_are_passes_over_what_is_trained_on(climb, probed):
    run = climb({"max_steps": -1, "num_train_epochs": 2}, probed=probed, difficulty={})
    assert len(run.logs) == 6
    assert Counter(sample["id"] for sample in run.samples) == {f"row-{number}": 8 for number in range(40, 64)}


def test_without_the_filter_all_prompts_come(climb, probed):
    run = climb({"max_steps": -1, "num_train_epochs": 1}, probed=probed, difficulty=None)
    assert Counter(sample["id"] for sample in run.samples) == {f"row-{number}": 4 for number in range(64)}
    assert not (run.output / "difficulty.json").exists()
    assert run.metrics["set_aside"] == 0


def test_probing_again_moves_prompts_between_active_and_set_aside(climb, probed):
    """The file is wrong about most rows, which the model solves sometimes; the next probe finds that out."""
    run = climb({"learning_rate": 0.0, "max_steps": 5}, probed=probed, difficulty={"reprobe_steps": 2}, health={})
    assert [entry["step"] for entry in run.probes] == [2, 4]
    assert all(entry["difficulty/active"] > 24 for entry in run.probes)
    assert all(entry["difficulty/probe_tokens"] > 50 * 4 * 2 for entry in run.probes)
    assert run.metrics["probe_tokens"] == sum(entry["difficulty/probe_tokens"] for entry in run.probes)
    assert run.metrics["set_aside"] == 64 - run.probes[-1]["difficulty/active"]
    assert len(run.logs) == 5
    wrongly_set_aside = {f"row-{number}" for number in range(40)}
    by_step = [{sample["id"] for sample in run.samples if sample["step"] == step} for step in range(1, 6)]
    # The batch of step 3 was asked for before the probe, for a dataloader is one batch ahead.
    assert not (by_step[0] | by_step[1] | by_step[2]) & wrongly_set_aside
    assert by_step[3] & wrongly_set_aside


def test_probing_again_does_not_go_with_workers_that_cannot_see_it(climb, probed):
    with pytest.raises(UserError, match=r"reprobe_steps changes the prompts .*dataloader_num_workers"):
        climb({"dataloader_num_workers": 1}, probed=probed, difficulty={"reprobe_steps": 2})


def test_nothing_in_between_is_an_error(climb, probed, tmp_path):
    known = [json.loads(line) for line in probed.read_text().splitlines()]
    rest = [{**known[0], "id": f"row-{number}"} for number in range(40, 64)]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*known[:40], *rest]))
    with pytest.raises(UserError, match="44 are solved and 20 out of reach"):
        climb(probed=path, difficulty={})


def test_a_parent_that_read_otherwise_is_found_out(climb, warm, tmp_path):
    stated = json.loads((warm / "contract.json").read_text())
    other = tmp_path / "contract.json"
    other.write_text(json.dumps({**stated, "chat_template": "0" * 64}))
    with pytest.raises(UserError, match="another chat template"):
        climb(parent_contract=other)


def test_the_contract_goes_on(climb, warm):
    run = climb({"max_steps": 1})
    assert (run.output / "contract.json").read_bytes() == (warm / "contract.json").read_bytes()
