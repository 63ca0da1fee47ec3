"""Which prompts are set aside, and in what order the others come."""

import json
from collections import Counter

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import GRPOConfig, GRPOTrainer

from tasks.config.schema import Difficulty
from tasks.errors import UserError
from tasks.probing.findings import Attempt, ProbedPrompt
from tasks.problems import Problem
from tasks.rewards import Status
from tasks.training.difficulty import Schedule, Sifted, describe, sift, steps


def problem(name: str, source: str = "s") -> Problem:
    return Problem(id=name, source=source, prompt=f"{name} of {source}", answer="1", verifier="numeric")


def probed(name: str, right: int, wrong: int, failed: int = 0, source: str = "s") -> ProbedPrompt:
    outcomes = [(1.0, Status.RIGHT)] * right + [(0.0, Status.WRONG)] * wrong + [(None, Status.INFRASTRUCTURE)] * failed
    attempts = [Attempt(completion="", tokens=3, ended=True, score=score, status=status) for score, status in outcomes]
    return ProbedPrompt(id=name, source=source, attempts=attempts)


def config(**given) -> GRPOConfig:
    fields = {"per_device_train_batch_size": 8, "num_generations": 2, "max_steps": 3, "seed": 1, **given}
    return GRPOConfig(**{"output_dir": "nowhere", "report_to": "none", "bf16": False, "use_cpu": True, **fields})


def everything(count: int, known: int = 0) -> Sifted:
    return Sifted(kept=list(range(known)), solved=[], unsolved=[], unprobed=list(range(known, count)))


ROWS = [problem("never"), problem("always"), problem("some"), problem("new"), problem("broken"), problem("rarely")]
PROBED = [
    probed("always", 4, 0),
    probed("never", 0, 4),
    probed("some", 2, 2),
    probed("broken", 0, 0, failed=4),
    probed("rarely", 1, 3),
    probed("gone", 2, 2),
    probed("some", 0, 4, source="another"),
]


def test_prompts_are_set_aside_by_their_pass_rate_and_what_is_not_known_stays():
    sifted = sift(ROWS, PROBED, Difficulty())
    assert sifted == Sifted(kept=[2, 5], solved=[1], unsolved=[0], unprobed=[3, 4])
    assert (sifted.active, sifted.known, sifted.set_aside) == ([2, 3, 4, 5], [0, 1, 2, 5], 2)


def test_the_limits_are_the_settings():
    sifted = sift(ROWS, PROBED, Difficulty(min_pass_rate=0.25, max_pass_rate=0.5))
    assert (sifted.kept, sifted.solved, sifted.unsolved) == ([], [1, 2], [0, 5])


def test_an_attempt_that_could_not_be_verified_does_not_count_as_wrong():
    assert sift([problem("a")], [probed("a", 3, 0, failed=1)], Difficulty()).solved == [0]


def test_what_was_set_aside_is_told_by_id_with_the_share_of_groups_without_spread(tmp_path):
    sifted = sift(ROWS, PROBED, Difficulty())
    describe(ROWS, PROBED, sifted, 2).write(tmp_path / "difficulty.json")
    assert json.loads((tmp_path / "difficulty.json").read_text()) == {
        "prompts": 6,
        "active": 4,
        "solved": ["s/always"],
        "unsolved": ["s/never"],
        "unprobed": 2,
        # Of two attempts out of four the same: 1 and 1; 2 of 6 pairs; 3 of 6 pairs.
        "zero_variance_before": pytest.approx((1 + 1 + 1 / 3 + 1 / 2) / 4),
        # Two rows that were not probed count with the share before.
        "zero_variance_after": pytest.approx((1 / 3 + 1 / 2 + 2 * (1 + 1 + 1 / 3 + 1 / 2) / 4) / 4),
    }
    nothing = describe(ROWS, [], sift(ROWS, [], Difficulty()), 2)
    assert (nothing.zero_variance_before, nothing.zero_variance_after) == (None, None)


def test_nothing_left_to_train_on_is_an_error():
    with pytest.raises(UserError, match=r"leaves no prompt to train on: .* 2 are solved and 1 out of reach"):
        Schedule(config(), Sifted(kept=[], solved=[0, 2], unsolved=[1], unprobed=[]))


def test_fewer_prompts_than_a_batch_takes_come_again():
    schedule = Schedule(config(), Sifted(kept=[5], solved=[0], unsolved=[], unprobed=[]))
    assert schedule.rows == [5] * 12


@pytest.mark.parametrize(
    "given",
    [
        {"max_steps": 7},
        {"max_steps": -1, "num_train_epochs": 1},
        {"max_steps": -1, "num_train_epochs": 2.5},
        {"max_steps": -1, "num_train_epochs": 3, "num_iterations": 3},
        {"max_steps": -1, "num_train_epochs": 3, "gradient_accumulation_steps": 2},
        {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
        {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 3, "steps_per_generation": 1},
        {"max_steps": 5, "num_iterations": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 2},
    ],
)
def test_there_are_as_many_steps_as_trl_would_make_and_the_schedule_is_enough_for_them(base, tmp_path, given):
    def counted(dataset: Dataset, **changed) -> tuple[int, int]:
        arguments = config(**{**given, **changed}, output_dir=str(tmp_path))
        trainer = GRPOTrainer(str(base), lambda completions, **_: [0.0], arguments, dataset)
        loader = trainer.get_train_dataloader()
        epochs, *_, max_steps = trainer.set_initial_training_values(arguments, loader)
        return epochs, max_steps

    # Not a multiple of what a generation batch takes: 4, 8 or 16.
    prompts = 18
    rows = [problem(str(number)) for number in range(prompts)]
    _, expected = counted(Dataset.from_dict({"prompt": [row.messages for row in rows]}))
    assert steps(config(**given), prompts) == expected
    schedule = Schedule(config(**given), everything(prompts))
    assert counted(schedule.dataset(rows), max_steps=schedule.steps, shuffle_dataset=False) == (1, expected)


def test_an_epoch_of_fewer_prompts_than_a_batch_takes_is_one_batch():
    assert steps(config(max_steps=-1, num_train_epochs=3), 2) == 3


passes = st.integers(1, 30)


@settings(deadline=None, max_examples=40)
@given(count=passes, share=st.floats(0, 1), max_steps=st.integers(1, 20), seed=st.integers(0, 99))
def test_each_pass_has_every_prompt_once_and_the_first_one_what_is_known_before_the_rest(count, share, max_steps, seed):
    known = round(share * count)
    schedule = Schedule(config(max_steps=max_steps, seed=seed), everything(count, known))
    assert len(schedule.rows) == 4 * max_steps
    for start in range(0, len(schedule.rows), count):
        taken = schedule.rows[start : start + count]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(count))
    first = schedule.rows[:count]
    assert set(first[:known]) == set(range(known)) or len(first) < known
    assert schedule.rows == Schedule(config(max_steps=max_steps, seed=seed), everything(count, known)).rows


@settings(deadline=None, max_examples=40)
@given(data=st.data(), count=passes, asked=st.integers(0, 40), seed=st.integers(0, 99))
def test_a_new_choice_leaves_what_is_in_use_and_takes_the_active_ones_evenly(data, count, asked, seed):
    schedule = Schedule(config(max_steps=30, seed=seed), everything(count))
    before = list(schedule.rows)
    rows = [problem(str(number)) for number in range(count)]
    dataset = schedule.dataset(rows)
    if asked:
        assert dataset[:asked]["row"] == before[:asked]
    active = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    schedule.draw(active)
    settled = -(-asked // 4) * 4
    assert schedule.rows[:settled] == before[:settled]
    assert len(schedule.rows) == len(before)
    rest = Counter(schedule.rows[settled:])
    assert rest.keys() <= set(active)
    # At most one turn more than the fullest of the others: the rest of the pass that was under way.
    turns = [rest[row] for row in active]
    assert max(turns) - min(turns) <= 2
    first = schedule.rows[settled:][: len(active)]
    behind = {row for row in active if before[:settled].count(row) < max(map(before[:settled].count, active))}
    assert set(first[: len(behind)]) == behind


def test_the_order_is_random_by_the_seed_and_that_of_the_rows_if_trl_is_not_to_shuffle():
    orders = [Schedule(config(max_steps=5, seed=seed), everything(20)).rows for seed in (1, 2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert Schedule(config(max_steps=5, shuffle_dataset=False), everything(20)).rows == list(range(20))
    passes = Schedule(config(max_steps=10), everything(20)).rows
    assert passes[:20] != passes[20:]


def test_a_slot_keeps_its_prompt_however_often_it_is_asked_for():
    rows = [problem(str(number)) for number in range(8)]
    schedule = Schedule(config(max_steps=4), everything(8))
    dataset = schedule.dataset(rows)
    first = dataset[[0, 0, 1, 1]]
    assert first["prompt"] == [rows[index].messages for index in first["row"]]
    schedule.draw([7])
    assert dataset[[0, 0, 1, 1]] == first
    # The rest of a batch that another process may have asked for stays too.
    assert schedule.rows[4:] == [7] * 12
    assert schedule.rows[2:4] == Schedule(config(max_steps=4), everything(8)).rows[2:4]
