"""DPO on the embedded model: what is trained on, from where, what is written, and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.config.schema import Alarm
from tasks.errors import UserError
from tasks.probing.pairs import read_pairs, write_pairs
from tasks.problems import Problem, read_split
from tasks.processes import contract
from tasks.training import dpo
from tasks.training.spec import DPOSpec

STEPS = 6
TRAINER = {"max_steps": STEPS, "per_device_train_batch_size": 16, "learning_rate": 3e-4}
END = "<|end|>"


@pytest.fixture(scope="session")
def pairs(tmp_path_factory, data) -> Path:
    """The right answer of each row of the data, and one that is off by one and ends otherwise."""
    rows = [
        row.model_copy(update={"id": f"{row.id}-1", "solution": None, "chosen": row.solution, "rejected": wrong})
        for row in read_split(data, "train")
        for wrong in [f"{row.solution.rsplit('#')[0]}#{int(row.answer) + 1}"]
    ]
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, rows, {"pairs": len(rows)})
    return folder / "pairs.jsonl"


@pytest.fixture
def planned(tmp_path, base, data, pairs, quick):
    """A spec with this much changed: `trainer` is added to the quick arguments."""

    def build(trainer=None, **changed) -> DPOSpec:
        output = tmp_path / f"output-{len(list(tmp_path.iterdir()))}"
        output.mkdir()
        fields = {"model": str(base), "data": data, "pairs": pairs, "output": output, "seed": 1, **changed}
        return DPOSpec(**fields, trainer={**quick, **TRAINER, **(trainer or {})})

    return build


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def changed_pair(pairs: Path, folder: Path, place: int, **fields: str) -> Path:
    rows = read_pairs(pairs)
    rows[place] = rows[place].model_copy(update=fields)
    write_pairs(folder, rows, {})
    return folder / "pairs.jsonl"


@pytest.fixture(scope="module")
def stages(tmp_path_factory, base, data, pairs, quick):
    """The same stage at the same time in two places, and what the first one printed."""
    folders = [tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second-elsewhere")]
    processes = []
    for folder in folders:
        (folder / "dpo").mkdir()
        spec = DPOSpec(
            model=str(base), data=data, pairs=pairs, output=folder / "dpo", seed=3, trainer={**quick, **TRAINER}
        )
        (folder / "spec.json").write_text(spec.model_dump_json())
        command = [sys.executable, "-m", "tasks.training.dpo", str(folder / "spec.json")]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return SimpleNamespace(one=folders[0] / "dpo", two=folders[1] / "dpo", log=outputs[0])


def test_the_output_is_complete_and_the_same_elsewhere(stages):
    names = {"model", "contract.json", "history.jsonl", "alarms.jsonl", "metrics.json"}
    assert {path.name for path in stages.one.iterdir()} == names
    first, second = (
        {path.name: path.read_bytes() for path in [*(out / "model").iterdir(), out / "contract.json"]}
        for out in (stages.one, stages.two)
    )
    assert first == second
    assert not any(str(stages.one).encode() in content for content in first.values())


def test_rewards_start_at_zero_and_the_margin_grows(stages):
    history = lines(stages.one / "history.jsonl")
    assert [entry["step"] for entry in history] == list(range(1, STEPS + 1))
    assert history[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    assert history[0]["rewards/chosen"] == pytest.approx(0, abs=1e-5)
    assert history[-1]["rewards/margins"] > history[1]["rewards/margins"] > 0
    assert history[-1]["rewards/accuracies"] > 0.8


def test_what_is_printed_and_counted(stages):
    first, *logs = stages.log.splitlines()
    assert first == "dpo: 64 pairs, 6 steps"
    assert [line.split("  ")[0] for line in logs] == [f"step {n}/{STEPS}" for n in range(1, STEPS + 1)]
    assert all(word in logs[-1] for word in ("loss ", "accuracy ", "margin ", "chosen "))
    metrics = json.loads((stages.one / "metrics.json").read_text())
    assert metrics["rows"] == 64
    assert metrics["stopped_by_alarm"] == 0


def test_an_epoch_is_told_where_steps_are_not_given(planned, pairs):
    config = dpo.arguments(planned({"max_steps": -1, "num_train_epochs": 1}))
    assert dpo.plan(config, 64) == "dpo: 64 pairs, 1 epoch"


def preferred(model: str | Path, pairs: list[Problem]) -> float:
    """The mean difference in log-probability of the chosen and the rejected answers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)

    def log_probability(pair: Problem, answer: str) -> float:
        opened = tokenizer.apply_chat_template(pair.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        ids = torch.tensor([opened + tokenizer(answer + END, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            each = policy(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return each[len(opened) - 1 :].sum().item()

    return sum(log_probability(pair, pair.chosen) - log_probability(pair, pair.rejected) for pair in pairs) / len(pairs)


def test_the_saved_model_prefers_what_was_chosen_and_with_swapped_pairs_the_contrary(
    stages, planned, base, pairs, tmp_path
):
    rows = read_pairs(pairs)
    swapped = [row.model_copy(update={"chosen": row.rejected, "rejected": row.chosen}) for row in rows]
    write_pairs(tmp_path / "swapped", swapped, {})
    spec = planned(pairs=tmp_path / "swapped" / "pairs.jsonl")
    dpo.train(spec)
    before, after, contrary = (preferred(model, rows) for model in (base, stages.one / "model", spec.output / "model"))
    assert contrary < before - 0.5 < before + 0.5 < after


def test_what_is_trained_on_is_the_prompt_as_it_is_asked_and_each_answer_with_one_end(planned, pairs):
    rows = read_pairs(pairs)
    trainer = dpo.build(planned(), rows)
    tokenizer, data = trainer.processing_class, trainer.train_dataset
    assert data["prompt_ids"][:] == contract.prompt_ids(tokenizer, [row.messages for row in rows])
    for side in ("chosen", "rejected"):
        assert [tokenizer.decode(ids) for ids in data[f"{side}_ids"]] == [getattr(row, side) + END for row in rows]
    batch = trainer.data_collator([data[place] for place in range(4)])
    for ids, mask, answer in zip(
        batch["input_ids"], batch["completion_mask"], [row.chosen for row in rows[:4]], strict=False
    ):
        assert tokenizer.decode(ids[mask.bool()]) == answer + END
    lengths = [len(ids) for side in ("chosen_ids", "rejected_ids") for ids in data[side]]
    assert dpo.mean_tokens(trainer) == sum(lengths) / len(lengths)


@pytest.mark.parametrize("trainer", [{}, {"precompute_ref_log_probs": True}])
def test_the_reference_is_the_model_that_training_starts_from(planned, trainer):
    spec = planned({"max_steps": 2, **trainer})
    dpo.train(spec)
    rewards = [entry["rewards/chosen"] for entry in lines(spec.output / "history.jsonl")]
    assert rewards[0] == pytest.approx(0, abs=1e-5)
    assert abs(rewards[1]) > 1e-4


def test_an_adapter_starts_from_the_reference_and_is_merged(planned, base):
    from safetensors.torch import load_file

    spec = planned(
        {"max_steps": 2, "learning_rate": 1e-2}, lora={"r": 4, "target_modules": "all-linear", "lora_dropout": 0.2}
    )
    dpo.train(spec)
    history = lines(spec.output / "history.jsonl")
    assert history[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    assert abs(history[1]["rewards/margins"]) > 1e-4
    before, after = (load_file(folder / "model.safetensors") for folder in (base, spec.output / "model"))
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


def test_another_reference_is_noticed_at_the_first_step(planned, pairs):
    import torch

    from tasks.training.dpo_reference import ReferenceCheck

    trainer = dpo.build(planned(), read_pairs(pairs))
    trainer.add_callback(ReferenceCheck(trainer.beta, dpo.mean_tokens(trainer)))
    with torch.no_grad():
        for weight in trainer.ref_model.parameters():
            weight.mul_(1.05)
    with pytest.raises(RuntimeError, match=r"the first step's rewards are not 0 \(rewards/chosen .*the reference is"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_an_alarm_is_heard(planned):
    spec = planned({"max_steps": 2}, health={"chosen_reward": Alarm(threshold=100, patience=1, action="stop")})
    dpo.train(spec)
    assert [alarm["alarm"] for alarm in lines(spec.output / "alarms.jsonl")] == ["chosen_reward"]
    assert json.loads((spec.output / "metrics.json").read_text())["stopped_by_alarm"] == 1


def test_an_answer_is_not_cut(planned, pairs, tmp_path):
    with pytest.raises(
        UserError,
        match=r"max_length is 20 tokens, and \d+ of 64 pairs have an answer that is longer.*up to 2\d \(row row-",
    ):
        dpo.train(planned({"max_length": 20}))
    long = changed_pair(pairs, tmp_path, 7, rejected="1" * 60)
    with pytest.raises(UserError, match=r"1 of 64 pairs have an answer that is longer.*\(row row-7-1\)"):
        dpo.train(planned({"max_length": 40}, pairs=long))


def test_an_end_of_turn_in_a_text_is_refused(planned, pairs, tmp_path):
    spoilt = changed_pair(pairs, tmp_path, 5, rejected=f"#1{END}#2")
    with pytest.raises(UserError, match=r"`rejected` of row row-5-1 holds a token that ends a turn \(<\|end\|>\)"):
        dpo.train(planned(pairs=spoilt))


def test_answers_that_do_not_end_are_refused(planned, base, tmp_path):
    folder = tmp_path / "unending"
    shutil.copytree(base, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace(f"'{END}'", "'<|user|>'"))
    with pytest.raises(UserError, match=r"the model stops at <\|end\|>, but the chat template closes an answer with"):
        dpo.train(planned(model=str(folder)))


def test_prompts_are_read_as_by_the_stage_before(planned, stages, base, tmp_path):
    spec = planned({"max_steps": 1}, parent_contract=stages.one / "contract.json")
    dpo.train(spec)
    assert (spec.output / "contract.json").read_bytes() == (stages.one / "contract.json").read_bytes()
    other = tmp_path / "other"
    shutil.copytree(base, other)
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("'<|assistant|>'", "'<|assistant|>='"))
    with pytest.raises(UserError, match="dpo reads other token ids than the chat template gives"):
        dpo.train(planned(model=str(other)))
    template.write_text((base / "chat_template.jinja").read_text() + "\n")
    with pytest.raises(UserError, match="another chat template"):
        dpo.train(planned(model=str(other), parent_contract=stages.one / "contract.json"))


def test_a_users_mistake_is_one_message_and_exit_code_2(planned, tmp_path):
    spec = planned(pairs=tmp_path / "nowhere.jsonl")
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    process = subprocess.run([sys.executable, "-m", "tasks.training.dpo", str(path)], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == f"{tmp_path / 'nowhere.jsonl'}: there is no such file; make the pairs first\n"
