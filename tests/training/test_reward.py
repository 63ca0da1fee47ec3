"""The reward of GRPO: the verifier's verdict, a file of the user's beside it, and the shuffled control."""

import json
import random
from pathlib import Path

import pytest

from tasks.errors import UserError
from tasks.problems import Problem
from tasks.rewards import Status
from tasks.training import reward
from tasks.training.reward import load, reward_function, try_out

TEXTS = ["#1", "#5", "hm", "#2"]


def problem(number: int) -> Problem:
    return Problem(id=str(number), source="s", prompt=f"{number}+0", answer=str(number), verifier="numeric")


PROBLEMS = [problem(1), problem(2)]


class State:
    """What TRL passes on of the trainer's state."""

    def __init__(self, step: int = 4) -> None:
        self.global_step, self.is_world_process_zero = step, True


@pytest.fixture
def ask(tmp_path):
    """Ask a reward function about completions of the rows: the rewards, the metrics and the samples."""

    def asked(texts=TEXTS, rows=(0, 0, 1, 1), step=4, problems=PROBLEMS, per_step=4, **given):
        metrics: dict[str, float] = {}
        samples = tmp_path / "samples.jsonl"
        samples.unlink(missing_ok=True)
        rewards = reward_function(problems, samples, per_step, **given)(
            completions=[[{"role": "assistant", "content": text}] for text in texts],
            row=list(rows),
            trainer_state=State(step),
            log_metric=metrics.__setitem__,
            prompts=[],
        )
        written = samples.read_text().splitlines() if samples.exists() else []
        return rewards, metrics, [json.loads(line) for line in written]

    return asked


def file(folder: Path, body: str) -> Path:
    path = folder / "own.py"
    path.write_text(body)
    return path


def test_the_reward_is_the_verdict_and_every_status_is_counted(ask):
    scores, metrics, samples = ask(per_step=2)
    assert scores == [1.0, 0.0, 0.0, 1.0]
    assert metrics.keys() == {f"verdict/{status}" for status in Status}
    assert {key: value for key, value in metrics.items() if value} == {
        "verdict/right": 2,
        "verdict/wrong": 1,
        "verdict/no_answer": 1,
    }
    assert [(s["step"], s["id"], s["completion"], s["score"], s["reward"]) for s in samples] == [
        (5, "1", "#1", 1, 1),
        (5, "2", "hm", 0, 0),
    ]


def test_what_could_not_be_verified_is_no_reward_and_a_whole_batch_of_it_an_error(ask, monkeypatch):
    from tasks.rewards import numeric

    judge = numeric.verify

    def sometimes_broken(completion, item):
        if item.id == "1":
            raise OSError("the disk is full")
        return judge(completion, item)

    monkeypatch.setattr(numeric, "verify", sometimes_broken)
    rewards, metrics, _ = ask(["#2", "#2"], [0, 1])
    assert rewards == [None, 1.0]
    assert metrics["verdict/infrastructure"] == 1
    with pytest.raises(RuntimeError, match="no completion of the batch could be judged: OSError: the disk is full"):
        ask(["#2", "#2"], [0, 0])


def test_the_users_reward_is_trained_on_and_the_verifier_judges_beside_it(ask, tmp_path):
    own = load(
        file(
            tmp_path,
            "def reward(completion, problem):\n    return (10 * len(completion) + int(problem.answer)) / 100\n",
        )
    )
    rewards, metrics, samples = ask(score=own)
    assert rewards == [0.21, 0.21, 0.22, 0.22]
    assert metrics["verified"] == 0.5
    assert metrics["verdict/right"] == 2
    assert [(s["reward"], s["score"], s["status"]) for s in samples] == [
        (0.21, 1, "right"),
        (0.21, 0, "wrong"),
        (0.22, 0, "no_answer"),
        (0.22, 1, "right"),
    ]


BROKEN = """
import time
def reward(completion, problem):
    if completion == "#5":
        raise KeyError("no such key")
    return {"#1": 0.5, "hm": float("nan"), "#2": "much", "wait": None}[completion]
"""


def test_a_reward_that_fails_on_a_completion_is_an_infrastructure_failure_and_never_0(ask, tmp_path):
    own = load(file(tmp_path, BROKEN))
    rewards, metrics, samples = ask(score=own)
    assert rewards == [0.5, None, None, None]
    assert metrics["verdict/infrastructure"] == 3
    assert metrics["verdict/right"] == 1
    assert metrics["verified"] == 0.5
    assert [s["score"] for s in samples] == [1, 0, 0, 1]
    with pytest.raises(RuntimeError, match=r"could be judged: reward\(completion, problem\): KeyError: 'no such key'"):
        ask(["#5", "#5"], [0, 1], score=own)


def test_a_reward_that_hangs_is_given_up(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(reward, "SECONDS", 0.2)
    own = load(
        file(tmp_path, "def reward(completion, problem):\n    while completion == 'hm':\n        pass\n    return 1\n")
    )
    rewards, _, _ = ask(score=own)
    assert rewards == [1, 1, None, 1]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "own.py is not a Python file; give one that has reward"),
        ("x = 1\n", "own.py has no function reward"),
        ("reward = 3\n", "own.py has no function reward"),
        ("import nowhere_at_all\n", "own.py:1 cannot be imported: ModuleNotFoundError: .*nowhere_at_all"),
        ("x = 1\ndef reward(:\n", "own.py:2 cannot be imported: SyntaxError"),
        ("raise SystemExit('bye')\n", "own.py:1 cannot be imported: SystemExit: bye"),
        ("def reward(completion):\n    return 1\n", "own.py: reward must take a completion and its problem"),
    ],
)
def test_a_file_that_has_no_reward_is_one_clear_error(tmp_path, body, message):
    path = tmp_path / "own.py" if body is None else file(tmp_path, body)
    with pytest.raises(UserError, match=f"^grpo.reward: .*{message}"):
        load(path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 'good'", "own.py: tried on the completion '#1' .*it returned 'good', which is no number from 0 to 1"),
        ("return float('inf')", "it returned inf"),
        ("return 1.5", "it returned 1.5, which is no number from 0 to 1"),
        ("raise SystemExit(0)", "tried on .*SystemExit"),
        ("return problem.gold", "own.py:2: tried on .*'gold'"),
    ],
)
def test_a_reward_is_tried_before_training(tmp_path, body, message):
    path = file(tmp_path, f"def reward(completion, problem):\n    {body}\n")
    with pytest.raises(UserError, match=message):
        try_out(load(path), path, problem(1).model_copy(update={"solution": "#1"}))


def test_a_reward_may_hold_a_dataclass_and_return_any_number(ask, tmp_path):
    own = load(
        file(
            tmp_path,
            "from dataclasses import dataclass\nimport numpy\n@dataclass\nclass Part:\n    value: float\n"
            "def reward(completion, problem):\n    return numpy.float32(Part(0.5).value) if completion else True\n",
        )
    )
    assert ask(["#1", ""], [0, 1], score=own)[0] == [0.5, 1.0]


def test_a_control_shuffles_the_true_rewards_by_seed_and_step_and_shows_the_true_ones(ask):
    rng = random.Random(1)
    texts = [rng.choice(["#1", "#9"]) for _ in range(64)]
    given = {"texts": texts, "rows": [0] * 64, "per_step": 64}
    true, metrics, _ = ask(**given)
    assert "verified" not in metrics
    shuffled, metrics, samples = ask(**given, shuffle_seed=1)
    assert sorted(shuffled) == sorted(true)
    assert shuffled != true
    assert metrics["verified"] == sum(true) / 64
    assert [s["score"] for s in samples] == true
    assert [s["reward"] for s in samples] == shuffled
    assert shuffled == ask(**given, shuffle_seed=1)[0]
    assert shuffled != ask(**given, shuffle_seed=2)[0]
    assert shuffled != ask(**given, shuffle_seed=1, step=5)[0]


def test_what_could_not_be_judged_is_shuffled_with_the_rest(ask, tmp_path):
    own = load(file(tmp_path, "def reward(completion, problem):\n    return 1 / (completion != '#5')\n"))
    texts = ["#5"] * 8 + ["#1"] * 24
    places = set()
    for step in range(5):
        rewards, _, _ = ask(texts, [0] * 32, step, score=own, shuffle_seed=1, per_step=0)
        assert rewards.count(None) == 8
        places.add(tuple(index for index, value in enumerate(rewards) if value is None))
    assert len(places) == 5
