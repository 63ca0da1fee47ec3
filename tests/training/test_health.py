"""Alarms: what each one looks at, when it is raised, and that judging never fails."""

import json
import math
import random
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState

from tasks.config.schema import DPO_ALARMS, GRPO_ALARMS, Alarm
from tasks.errors import UserError
from tasks.training.alarms import ALARMS
from tasks.training.health import Health, judge

DEFAULTS = {name: Alarm(**fields) for name, fields in {**GRPO_ALARMS, **DPO_ALARMS}.items()}
HEALTHY = {
    "loss": 0.1,
    "grad_norm": 0.5,
    "reward": 0.5,
    "verified": 0.45,
    "kl": 0.01,
    "entropy": 0.3,
    "frac_reward_zero_std": 0.2,
    "completions/clipped_ratio": 0.05,
    "completions/mean_length": 20.0,
    "clip_ratio/region_mean": 0.01,
    "rewards/chosen": 0.1,
    "verdict/right": 58.0,
    "verdict/wrong": 69.0,
    "verdict/infrastructure": 1.0,
}


def logs(*changes: dict[str, float], healthy: int = 5) -> list[dict[str, float]]:
    rows = [HEALTHY] * healthy + [{**HEALTHY, **change} for change in changes]
    return [{"step": step, **row} for step, row in enumerate(rows, 1)]


def raised_at(rows, alarms) -> list[tuple[int, str]]:
    return [(each.step, each.alarm) for end in range(len(rows) + 1) for each in judge(rows[:end], alarms)]


def test_there_is_an_alarm_for_each_name_in_the_settings():
    assert ALARMS.keys() == DEFAULTS.keys()


def test_health_raises_nothing():
    assert raised_at(logs(healthy=40), DEFAULTS) == []


@pytest.mark.parametrize(
    ("name", "trouble", "within", "value", "says"),
    [
        ("not_a_number", {"loss": math.nan}, {"loss": 1e9}, 1, "loss is nan; lower trainer.learning_rate"),
        ("not_a_number", {"grad_norm": math.inf}, {}, 1, "grad_norm is inf"),
        ("not_a_number", {"reward": math.nan}, {}, 1, "reward is nan"),
        ("reward_collapse", {"reward": 0.2}, {"reward": 0.26}, 0.4, "is 0.2, and was 0.5 at the start; lower grpo."),
        ("reward_hacking", {"reward": 0.75}, {"reward": 0.69}, 0.25, "0.75 .* 0.45: the reward is 0.3 above .*0.05"),
        ("reward_hacking", {"verified": 0.2}, {"verified": 0.26}, 0.25, "mend that function"),
        ("infrastructure", {"verdict/infrastructure": 4.0}, {"verdict/infrastructure": 2.0}, 4 / 131, "3.1% of the"),
        ("kl", {"kl": 2.5}, {"kl": 2.0}, 2.5, "is 2.5; .* raise grpo.trainer.beta"),
        ("kl", {"kl": math.inf}, {}, None, "is inf"),
        ("zero_variance", {"frac_reward_zero_std": 0.9}, {"frac_reward_zero_std": 0.8}, 0.9, "grpo.difficulty"),
        ("truncated", {"completions/clipped_ratio": 0.4}, {"completions/clipped_ratio": 0.3}, 0.4, "completion_length"),
        ("entropy_collapse", {"entropy": 0.005}, {"entropy": 0.01}, 0.005, "max_steps"),
        ("clip_ratio", {"clip_ratio/region_mean": 0.2}, {"clip_ratio/region_mean": 0.1}, 0.2, "num_iterations"),
        ("reward_jump", {"reward": 1.1}, {"reward": 0.95}, 0.6, "went from 0.5 to 1.1"),
        ("reward_jump", {"reward": -0.1}, {"reward": 0.05}, 0.6, "went from 0.5 to -0.1"),
        ("length_explosion", {"completions/mean_length": 90.0}, {"completions/mean_length": 80.0}, 4.5, "90 .*had 20"),
        ("chosen_reward", {"rewards/chosen": -0.6}, {"rewards/chosen": -0.5}, -0.6, "dpo.trainer.beta"),
    ],
)  # fmt: skip
def test_an_alarm_is_raised_for_its_figure_and_only_beyond_its_threshold(name, trouble, within, value, says):
    alarms = {name: DEFAULTS[name].model_copy(update={"patience": 1})}
    assert judge(logs(within), alarms) == []
    (raised,) = judge(logs(trouble), alarms)
    assert (raised.step, raised.alarm, raised.action) == (6, name, DEFAULTS[name].action)
    assert raised.threshold == DEFAULTS[name].threshold
    assert raised.value == (value if value is None else pytest.approx(value))
    assert re.search(says, raised.message), raised.message
    assert judge(logs(trouble), {name: alarms[name].model_copy(update={"action": "off"})}) == []


@pytest.mark.parametrize("name", ALARMS)
def test_what_is_not_logged_raises_nothing(name):
    alarms = {name: DEFAULTS[name].model_copy(update={"patience": 1, "threshold": 0.0})}
    assert judge([{"step": step, "learning_rate": 1e-3} for step in range(9)], alarms) == []
    assert judge([], alarms) == []


def test_all_that_is_wrong_at_once_is_told_in_one_order():
    alarms = {name: alarm.model_copy(update={"patience": 1}) for name, alarm in reversed(DEFAULTS.items())}
    rows = logs({"kl": 3.0, "entropy": 0.0, "loss": math.nan})
    assert [raised.alarm for raised in judge(rows, alarms)] == ["not_a_number", "kl", "entropy_collapse"]


def collapses(*rewards: float) -> list[tuple[int, str]]:
    alarms = {"reward_collapse": DEFAULTS["reward_collapse"]}
    return raised_at([{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)], alarms)


def test_a_collapse_is_seen_whenever_it_comes():
    assert collapses(0.4, 0.5, 0.45, 0.4, 0.4, 0.1, 0.1, 0.1) == [(8, "reward_collapse")]
    late = collapses(*[0.3, 0.4] * 10, *[0.0] * 10)
    assert [name for _, name in late] == ["reward_collapse"]
    first_step = collapses(0.3, *[0.0] * 20)
    assert [name for _, name in first_step] == ["reward_collapse"]


def test_a_fall_within_chance_is_no_collapse():
    """As of one prompt in a batch, whose completions are all right or all wrong."""
    assert collapses(*[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0] * 5) == []
    assert collapses(*[0.02, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0, 0.03] * 5) == []
    assert collapses(*[0.0] * 9) == []
    assert collapses(-1, -1, -1, -4, -4, -4, -4) == []


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5])
def test_a_policy_that_stays_as_it_is_is_hardly_ever_said_to_collapse(rate):
    """Four prompts of eight completions a batch, as different as prompts are: most are always or never solved."""
    rng = random.Random(1)

    def batch() -> float:
        prompts = [rng.betavariate(rate, 1 - rate) for _ in range(4)]
        return sum(rng.random() < prompt for prompt in prompts for _ in range(8)) / 32

    assert sum(collapses(*(batch() for _ in range(60))) != [] for _ in range(50)) <= 1


def test_logs_that_do_not_tell_count_for_neither():
    quiet = {"kl": math.nan}
    alarms = {"kl": Alarm(threshold=2.0, patience=2)}
    assert raised_at(logs({"kl": 3}, quiet, {"kl": 3}, quiet, {"kl": 3}, healthy=0), alarms) == [(3, "kl")]


@given(beyond=st.lists(st.booleans(), max_size=30), patience=st.integers(1, 5))
def test_an_alarm_is_raised_once_when_its_patience_is_reached_and_again_after_it_has_recovered(beyond, patience):
    rows = [{"step": step, "kl": 3.0 if each else 1.0} for step, each in enumerate(beyond)]
    expected, streak = [], 0
    for step, each in enumerate(beyond):
        streak = streak + 1 if each else 0
        if streak == patience:
            expected.append((step, "kl"))
    assert raised_at(rows, {"kl": Alarm(threshold=2.0, patience=patience)}) == expected


numbers = st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308]))
any_rows = st.lists(st.dictionaries(st.sampled_from([*HEALTHY, "step_time"]), numbers), max_size=12)


@given(rows=any_rows, threshold=numbers, patience=st.integers(1, 3))
def test_judging_never_fails_and_what_it_says_is_json(rows, threshold, patience):
    alarms = {name: Alarm(threshold=threshold, patience=patience, action="stop") for name in ALARMS}
    for end in range(len(rows) + 1):
        for raised in judge([{"step": n, **row} for n, row in enumerate(rows[:end])], alarms):
            assert raised.step == end - 1
            assert raised.value is None or math.isfinite(raised.value)
            assert raised.message


class Told:
    """A callback's arguments at a step of training."""

    def __init__(self, step: int, first_process: bool = True, fp16: bool = False) -> None:
        import torch

        self.control = TrainerControl()
        self.state = TrainerState(global_step=step, max_steps=9, is_world_process_zero=first_process)
        self.arguments = SimpleNamespace(fp16=fp16)
        self.model = torch.nn.Linear(2, 2)

    def log(self, health: Health, **logs: float | None) -> TrainerControl:
        health.on_train_begin(self.arguments, self.state, self.control)
        health.on_log(self.arguments, self.state, self.control, logs, model=self.model)
        return self.control


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_stop_alarm_ends_training_and_a_warning_does_not(tmp_path, capsys):
    alarms = {"kl": Alarm(threshold=2.0, action="warn"), "entropy_collapse": Alarm(threshold=0.01, action="stop")}
    health = Health(alarms, tmp_path / "alarms.jsonl")
    assert not Told(1).log(health, loss=0.1, kl=1.0, entropy=0.2).should_training_stop
    assert written(tmp_path / "alarms.jsonl") == []
    assert not Told(2).log(health, loss=0.1, kl=3.0, entropy=0.2).should_training_stop
    assert health.stopped is None
    assert Told(3).log(health, loss=0.1, kl=3.0, entropy=0.001).should_training_stop
    assert health.stopped.alarm == "entropy_collapse"
    assert not Told(4).log(health, train_runtime=1.0, train_loss=math.nan, kl=1.0).should_training_stop
    warning, stop = written(tmp_path / "alarms.jsonl")
    assert warning.keys() == {"step", "alarm", "value", "threshold", "action", "message"}
    assert (warning["step"], warning["alarm"], warning["value"], warning["action"]) == (2, "kl", 3.0, "warn")
    assert (stop["step"], stop["alarm"], stop["value"], stop["action"]) == (3, "entropy_collapse", 0.001, "stop")
    assert capsys.readouterr().out.splitlines()[0].startswith("alarm  kl  step 2  the KL divergence from the start")


def test_every_process_stops_and_one_writes(tmp_path):
    health = Health({"kl": Alarm(threshold=2.0, action="stop")}, tmp_path / "alarms.jsonl")
    assert Told(1, first_process=False).log(health, loss=0.1, kl=3.0).should_training_stop
    assert not (tmp_path / "alarms.jsonl").exists()


@pytest.mark.parametrize("alarms", [{}, {"not_a_number": Alarm(threshold=0, action="off")}])
def test_a_loss_that_is_no_number_fails_a_stage_without_an_alarm_for_it(tmp_path, alarms):
    with pytest.raises(FloatingPointError, match="step 1: loss is nan; lower the learning rate"):
        Told(1).log(Health(alarms, tmp_path / "alarms.jsonl"), loss=math.nan)


def test_steps_that_the_scaler_of_fp16_leaves_out_are_no_alarm(tmp_path):
    alarms = {"not_a_number": DEFAULTS["not_a_number"]}
    path = tmp_path / "alarms.jsonl"
    assert not Told(1, fp16=True).log(Health(alarms, path), loss=0.1, grad_norm=math.inf).should_training_stop
    assert Told(1, fp16=True).log(Health(alarms, path), loss=math.nan, grad_norm=math.inf).should_training_stop
    assert Told(1).log(Health(alarms, path), loss=0.1, grad_norm=math.inf).should_training_stop


def test_an_alarm_that_there_is_not(tmp_path):
    with pytest.raises(UserError, match="there is no alarm 'entropy'; there are: not_a_number, "):
        Health({"entropy": Alarm(threshold=1)}, tmp_path / "alarms.jsonl")


def test_a_broken_weight_is_logged_at_once_and_is_not_a_number(tmp_path):
    health = Health({"not_a_number": DEFAULTS["not_a_number"]}, tmp_path / "alarms.jsonl")
    told = Told(1)
    health.on_step_end(told.arguments, told.state, told.control, model=told.model)
    assert not told.control.should_log
    told.model.weight.data[0, 0] = math.nan
    health.on_step_end(told.arguments, told.state, told.control, model=told.model)
    assert told.control.should_log
    assert told.log(health, loss=0.1, grad_norm=0.1).should_training_stop
    assert health.stopped.message.startswith("a weight is nan")
    with pytest.raises(FloatingPointError, match="step 1: a weight is nan"):
        told.log(Health({}, tmp_path / "alarms.jsonl"), loss=0.1)
