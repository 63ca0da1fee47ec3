"""The choice of the weights, in real GRPO runs: measuring changes nothing, and broken weights are never saved."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tasks.config.schema import GRPO_ALARMS, Alarm, Selection
from tasks.errors import UserError
from tasks.probing.sampling import Sampling, attempt
from tasks.problems import Problem, read_split
from tasks.training import sft
from tasks.training.arguments import lora_config, trainer_arguments
from tasks.training.history import History
from tasks.training.reward import reward_function
from tasks.training.selection import BestCheckpoint, Checkpoint, dev_problems
from tasks.training.spec import TrainingSpec
from tasks.training.stage import train_and_save

ADAPTER = {"r": 8, "target_modules": "all-linear"}
ALARMS = {name: Alarm(**fields) for name, fields in GRPO_ALARMS.items()}
GRPO = {"per_device_train_batch_size": 32, "num_generations": 4, "max_completion_length": 24, "learning_rate": 3e-4}


@pytest.fixture(scope="module")
def warm(tmp_path_factory, base, data, quick):
    """A model that is right about half of the time."""
    output = tmp_path_factory.mktemp("warm")
    trainer = {**quick, "max_steps": 10, "per_device_train_batch_size": 16, "learning_rate": 5e-4}
    sft.train(TrainingSpec(model=str(base), data=data, output=output, seed=3, trainer=trainer))
    return str(output / "model")


@pytest.fixture
def grpo(spec_of, warm, data):
    """Run GRPO, with this much changed, to a namespace of what it wrote and of its last step's weights."""

    def run(trainer, selection=None, alarms=ALARMS, callbacks=(), lora=None) -> SimpleNamespace:
        spec = spec_of({**GRPO, **trainer}, model=warm, health=alarms, lora=lora)
        config = trainer_arguments("grpo", GRPOConfig, spec)
        tokenizer = AutoTokenizer.from_pretrained(warm)
        rows = read_split(data, "train")
        made = GRPOTrainer(
            model=warm,
            reward_funcs=reward_function(rows, spec.output / "samples.jsonl", 0),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [row.messages for row in rows], "row": list(range(len(rows)))}),
            processing_class=tokenizer,
            peft_config=lora_config("grpo", spec),
            callbacks=[last := Weights(), *callbacks],
        )
        history = History(spec.output / "history.jsonl", "grpo", {"reward": "reward"})
        folder = spec.output / "work"
        best = selection and BestCheckpoint(selection, rows[:32], tokenizer, 24, history, folder, 1)
        train_and_save(made, spec, history, len(rows), best=best, extra_metrics={"extra": 3})
        return SimpleNamespace(
            metrics=json.loads((spec.output / "metrics.json").read_text()),
            history=written(spec.output / "history.jsonl"),
            alarms=written(spec.output / "alarms.jsonl"),
            dev={row["step"]: row["dev/accuracy"] for row in written(spec.output / "history.jsonl") if len(row) == 2},
            model=spec.output / "model",
            last=last.weights,
            files={path.name for path in spec.output.iterdir()},
        )

    return run


class Weights(TrainerCallback):
    """What was trained, after each step."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_begin(self, args, state, control, model, **_):
        self.on_step_end(args, state, control, model)

    def on_step_end(self, args, state, control, model, **_):
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.weights[state.global_step] = {name: weight.detach().clone() for name, weight in trained.items()}


def written(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def accuracy(folder, rows) -> float:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    probed = attempt(model, tokenizer, rows, 1, Sampling(24, temperature=0.0), seed=0)
    return sum(prompt.attempts[0].right for prompt in probed) / len(rows)


def test_a_learning_rate_100_times_too_high_is_stopped_and_the_best_weights_are_saved(grpo, data, warm):
    run = grpo({"learning_rate": 3e-2, "max_steps": 30}, Selection(eval_steps=2, early_stopping_patience=30))
    assert run.metrics["stopped_by_alarm"] == 1
    assert run.alarms[-1]["action"] == "stop"
    assert run.alarms[-1]["step"] == run.history[-1]["step"] < 30
    assert "learning_rate" in run.alarms[-1]["message"]
    rows = read_split(data, "train")[:32]
    kept = load_file(run.model / "model.safetensors")
    assert equal(kept, run.last[run.metrics["best_step"]])
    assert all(weight.isfinite().all() for weight in kept.values())
    assert run.metrics["start_dev_accuracy"] == run.dev[0] == accuracy(warm, rows)
    assert run.metrics["best_dev_accuracy"] == max(run.dev.values()) == accuracy(run.model, rows)
    assert accuracy(run.model, rows) >= run.dev[0] > run.dev[max(run.dev)]


@pytest.mark.parametrize("lora", [None, ADAPTER])
def test_measuring_does_not_change_the_training(grpo, lora):
    steps = {"max_steps": 4, "learning_rate": 5e-3}
    with_it, without = grpo(steps, Selection(eval_steps=2), lora=lora), grpo(steps, lora=lora)
    assert all(equal(with_it.last[step], without.last[step]) for step in range(5))
    assert not equal(with_it.last[0], with_it.last[4])
    assert sorted(with_it.dev) == [0, 2, 4]
    assert [row for row in with_it.history if len(row) > 2][-1]["reward"] == without.history[-1]["reward"]
    assert without.metrics.keys() == with_it.metrics.keys() - {
        "best_step",
        "best_dev_accuracy",
        "start_dev_accuracy",
        "stopped_early",
    }
    assert with_it.metrics["extra"] == without.metrics["extra"] == 3
    assert with_it.files == without.files == {"model", "history.jsonl", "alarms.jsonl", "metrics.json"}


def test_the_weights_of_the_best_measurement_are_saved(grpo, data):
    run = grpo({"max_steps": 9}, Selection(eval_steps=3))
    best = max(run.dev, key=run.dev.__getitem__)
    assert sorted(run.dev) == [0, 3, 6, 9]
    assert 0 < best == run.metrics["best_step"]
    assert equal(load_file(run.model / "model.safetensors"), run.last[best])
    assert (run.metrics["stopped_early"], run.metrics["stopped_by_alarm"]) == (0, 0)


def test_training_ends_early_when_nothing_becomes_better(grpo):
    run = grpo({"max_steps": 20, "learning_rate": 0.0}, Selection(eval_steps=1, early_stopping_patience=3))
    assert sorted(run.dev) == [0, 1, 2, 3]
    assert (run.metrics["stopped_early"], run.metrics["stopped_by_alarm"], run.metrics["best_step"]) == (1, 0, 0)


def test_the_end_is_measured_and_is_no_early_stop(grpo):
    run = grpo({"max_steps": 3, "learning_rate": 0.0}, Selection(eval_steps=2, early_stopping_patience=2))
    assert sorted(run.dev) == [0, 2, 3]
    assert run.metrics["stopped_early"] == 0


class Poison(TrainerCallback):
    """Makes the gradients of the third step no numbers, after their norm is taken."""

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        if state.global_step == 2:
            next(weight for weight in model.parameters() if weight.requires_grad).grad.fill_(math.nan)


@pytest.mark.parametrize("selection", [None, Selection(eval_steps=1)])
@pytest.mark.parametrize("lora", [None, ADAPTER])
def test_weights_that_became_no_numbers_are_neither_measured_nor_saved(grpo, warm, selection, lora):
    run = grpo({"max_steps": 6, "logging_steps": 5}, selection, callbacks=[Poison()], lora=lora)
    assert [(alarm["step"], alarm["alarm"]) for alarm in run.alarms] == [(3, "not_a_number")]
    assert run.metrics["stopped_by_alarm"] == 1
    assert max(run.last) == 3
    assert sorted(run.dev) == ([0, 1, 2] if selection else [])
    kept = load_file(run.model / "model.safetensors")
    assert all(weight.isfinite().all() for weight in kept.values())
    if selection is None:
        assert equal(kept, load_file(f"{warm}/model.safetensors"))


def test_without_alarms_a_loss_that_is_no_number_fails_the_stage(spec_of):
    spec = spec_of({"learning_rate": 1e30, "max_steps": 4, "max_grad_norm": 0.0})
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        sft.train(spec)
    assert not (spec.output / "model").exists()


def test_a_checkpoint_is_replaced_as_a_whole_and_holds_what_is_trained(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)).to(torch.bfloat16)
    model[1].requires_grad_(False)
    checkpoint = Checkpoint(tmp_path / "work" / "best.safetensors")
    checkpoint.keep(model)
    expected = {name: weight.detach().clone() for name, weight in model[0].named_parameters()}
    torch.nn.init.ones_(model[0].weight)
    checkpoint.restore(model)
    assert equal(dict(model[0].named_parameters()), expected)
    assert load_file(checkpoint.path).keys() == {"0.weight", "0.bias"}
    assert [path.name for path in checkpoint.path.parent.iterdir()] == ["best.safetensors"]


def test_what_cannot_be_verified_is_left_out_of_the_accuracy(warm, tmp_path, monkeypatch, data):
    from tasks.rewards import numeric

    rows = read_split(data, "train")[:8]
    right = {row.id for row in rows if accuracy(warm, [row])}
    failing: set[str] = set()
    judge = numeric.verify

    def broken(completion, problem):
        if problem.id in failing:
            raise OSError("the disk is full")
        return judge(completion, problem)

    monkeypatch.setattr(numeric, "verify", broken)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(warm), AutoTokenizer.from_pretrained(warm)
    history = History(tmp_path / "history.jsonl", "", {})
    best = BestCheckpoint(Selection(), rows, tokenizer, 24, history, tmp_path, 1)
    arguments = SimpleNamespace(process_index=0, world_size=1, chat_template_kwargs=None)
    state = SimpleNamespace(global_step=0, max_steps=9, is_world_process_zero=True)
    failing |= {row.id for row in rows[:5]}
    best.on_train_begin(arguments, state, None, model=model)
    assert best.measured == {0: len(right - failing) / 3}
    failing |= {row.id for row in rows}
    with pytest.raises(RuntimeError, match="step 0: no completion of the dev problems could be verified"):
        best.on_train_begin(arguments, state, None, model=model)


def test_dev_problems_are_those_that_can_be_verified_in_an_order_of_their_own(tmp_path):
    def row(number: int, **changed) -> Problem:
        return Problem(id=str(number), source="s", prompt=f"{number}+0", verifier="numeric", **changed)

    rows = [row(number, answer=str(number)) for number in range(20)]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(each.model_dump_json(exclude_defaults=True) + "\n" for each in [row(99), *rows]))
    chosen = [problem.id for problem in dev_problems(tmp_path, 12, seed=1)]
    assert len(set(chosen)) == 12
    assert "99" not in chosen
    path.write_text("".join(each.model_dump_json(exclude_defaults=True) + "\n" for each in reversed(rows)))
    assert [problem.id for problem in dev_problems(tmp_path, 12, seed=1)] == chosen
    path.write_text(row(99).model_dump_json(exclude_defaults=True) + "\n")
    with pytest.raises(UserError, match=r"grpo\.selection needs dev rows: give a source a dev share, or set grpo"):
        dev_problems(tmp_path, 12, seed=1)
