"""How far the climb goes, for real: where it stops, what is thrown away, what an alarm does.

The tests of this file follow one checkout. Its evaluations are of few items, for it is the climb that is looked at.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.e2e.conftest import run

pytestmark = pytest.mark.slow

FEW = "evaluation.limit=100"
UNTAUGHT = "untaught"

HACKABLE = '''
"""Pays for length."""


def reward(completion, problem):
    return min(1.0, len(completion) / 60)
'''


@pytest.fixture(scope="module")
def checkout(fresh_checkout: Callable[..., Path]) -> Path:
    return fresh_checkout("climb")


@pytest.fixture(scope="module")
def controlled(checkout: Path) -> dict[str, Any]:
    return run(checkout, FEW, arguments=["--control", "random-reward"])


@pytest.fixture(scope="module")
def preferred(checkout: Path, controlled: dict[str, Any]) -> dict[str, Any]:
    """DPO from pairs of the SFT model's own answers, and no GRPO."""
    return run(checkout, FEW, "dpo.enabled=true", "probe.decision=stop")


def client(checkout: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{checkout / '.ratchet' / 'mlflow' / 'mlflow.db'}")


def child(checkout: Path, result: dict[str, Any], stage: str) -> Any:
    """A stage's run in MLflow."""
    tracking = client(checkout)
    experiment = tracking.get_run(result["run_id"]).info.experiment_id
    [found] = tracking.search_runs(
        [experiment], f"tags.`mlflow.parentRunId` = '{result['run_id']}' and tags.`ratchet.stage` = '{stage}'"
    )
    return found


def output(checkout: Path, result: dict[str, Any], stage: str) -> Path:
    return checkout / ".ratchet" / "stages" / f"{stage}-{result['stages'][stage]['key']}"


def report(result: dict[str, Any]) -> dict[str, Any]:
    return json.loads(Path(result["report"]).with_suffix(".json").read_bytes())


def test_random_rewards_gain_nothing_and_the_report_says_so(controlled: dict[str, Any]) -> None:
    control = controlled["control"]
    assert control["grpo"]["difference"] > 0.4
    assert control["control"]["low"] <= 0 <= control["control"]["high"]
    assert control["distinguishable"] is False
    assert control["excess"]["low"] > 0.4
    started, ended = control["dev_accuracy"]
    assert ended <= started
    assert "The control's gain is indistinguishable from zero" in control["conclusion"]
    assert control["conclusion"] in " ".join(controlled["stdout"].split())
    assert report(controlled)["control"]["conclusion"] == control["conclusion"]


def test_the_control_is_measured_and_is_no_candidate(controlled: dict[str, Any], checkout: Path) -> None:
    assert list(controlled["evaluation"]) == ["base", "sft", "grpo", "control"]
    version = client(checkout).get_model_version_by_alias("arithmetic", "champion")
    assert version.tags["stage"] == "grpo"


def test_the_probe_finds_headroom_on_the_shipped_base(controlled: dict[str, Any], checkout: Path) -> None:
    assert controlled["decision"]["outcome"] == "climb"
    assert client(checkout).get_run(controlled["run_id"]).data.tags["ratchet.decision"] == "climb"
    probed = child(checkout, controlled, "probe-sft").data.metrics
    assert probed["pass_at_1"] < probed["pass_at_k"] - 0.3
    assert probed["chance_at_k"] < probed["pass_at_k"]


def test_the_chosen_checkpoint_is_the_best_on_dev(controlled: dict[str, Any], checkout: Path) -> None:
    rows = [json.loads(line) for line in (output(checkout, controlled, "grpo") / "history.jsonl").open()]
    points = {row["step"]: row["dev/accuracy"] for row in rows if "dev/accuracy" in row}
    chosen = report(controlled)["checkpoint"]
    assert chosen["accuracy"] == points[chosen["step"]] == max(points.values())
    assert len(points) >= 4


def test_prompts_that_teach_nothing_are_set_aside_by_name(controlled: dict[str, Any], checkout: Path) -> None:
    difficulty = json.loads((output(checkout, controlled, "grpo") / "difficulty.json").read_bytes())
    aside = {*difficulty["solved"], *difficulty["unsolved"]}
    rows = [json.loads(line) for line in (output(checkout, controlled, "probe-sft") / "train.jsonl").open()]
    flat = [row for row in rows if len({attempt["status"] == "right" for attempt in row["attempts"]}) == 1]
    assert 0 < len(aside) == len(flat)
    assert difficulty["active"] == difficulty["prompts"] - len(aside)
    assert difficulty["zero_variance_after"] < difficulty["zero_variance_before"]


def test_dpo_from_self_made_pairs_beats_sft(preferred: dict[str, Any], checkout: Path) -> None:
    told = report(preferred)["preference"]
    assert told["origin"] == "made"
    assert told["kept"] is True
    assert told["after"] > told["before"] + 0.2
    assert preferred["evaluation"]["dpo"]["arithmetic"]["score"] > preferred["evaluation"]["sft"]["arithmetic"]["score"]
    assert "grpo" not in preferred["stages"]
    assert preferred["version"] is not None
    pointer = (checkout / "data" / "pairs.dvc").read_text()
    [pairs] = child(checkout, preferred, "dpo").inputs.dataset_inputs
    assert pairs.dataset.digest in pointer


def test_dpo_from_swapped_pairs_is_thrown_away_and_it_is_said(preferred: dict[str, Any], checkout: Path) -> None:
    pairs = [json.loads(line) for line in (checkout / "data" / "pairs" / "pairs.jsonl").open()]
    swapped = {
        row["prompt"]: {
            "prompt": row["prompt"],
            "answer": row["answer"],
            "solution": f"#{row['answer']}",
            "chosen": row["rejected"],
            "rejected": row["chosen"],
        }
        for row in pairs
    }
    (checkout / "data" / "swapped.jsonl").write_text("".join(json.dumps(row) + "\n" for row in swapped.values()))
    # The first source by name keeps a prompt that two have.
    source = "data.sources.a-swapped={path: data/swapped.jsonl, split: {train: 1.0}}"
    result = run(checkout, FEW, source, "probe.decision=stop")
    told = report(result)["preference"]
    assert told["origin"] == "given"
    assert told["kept"] is False
    assert told["after"] < told["before"]
    assert "Thrown away" in result["preference"]
    assert "Thrown away" in result["stdout"]
    assert list(result["evaluation"])[:2] == ["base", "sft"]
    assert "dpo" not in result["evaluation"]
    assert result["verdict"]["decision"] == "hold"


def test_a_reward_that_is_hacked_raises_the_alarm_and_is_not_promoted(
    controlled: dict[str, Any], checkout: Path
) -> None:
    (checkout / "hackable.py").write_text(HACKABLE)
    result = run(checkout, FEW, "grpo.reward=hackable.py")
    assert result["verdict"]["decision"] == "blocked"
    assert "The alarm reward_hacking stopped grpo" in result["verdict"]["reasons"][0]
    assert result["promotion"] is None
    assert child(checkout, result, "grpo").data.metrics["alarms/reward_hacking"] == 1
    assert [alarm["alarm"] for alarm in report(result)["alarms"] if alarm["action"] == "stop"] == ["reward_hacking"]
    assert "alarm  reward_hacking" in result["stderr"]


def test_a_learning_rate_100_times_too_high_is_stopped_and_the_last_good_checkpoint_kept(
    controlled: dict[str, Any], checkout: Path
) -> None:
    result = run(checkout, FEW, "grpo.trainer.learning_rate=3e-2")
    assert result["verdict"]["decision"] == "blocked"
    assert result["promotion"] is None
    assert child(checkout, result, "grpo").data.metrics["stopped_by_alarm"] == 1
    scores = result["evaluation"]
    assert scores["grpo"]["arithmetic"]["score"] >= scores["sft"]["arithmetic"]["score"]
    assert report(result)["checkpoint"]["stopped"]


def untaught(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that was trained as the shipped one is, but on answers that have nothing to do with their questions."""
    import random

    monkeypatch.syspath_prepend(str(checkout / "data"))
    import base

    rng = random.Random(0)
    monkeypatch.setattr(base, "LENGTHS", {3: 1000, 4: 3000, 5: 2000})
    monkeypatch.setattr(base, "working", lambda _prompt, _answered: f"#{rng.randint(-9, 40)}")
    model, tokenizer = base.train(seed=0, epochs=1)
    for part in (model, tokenizer):
        part.save_pretrained(checkout / "data" / UNTAUGHT)


def test_on_a_base_without_the_skill_grpo_does_not_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untaught(checkout, monkeypatch)
    result = run(checkout, FEW, f"model.path=data/{UNTAUGHT}", f"registry.name={UNTAUGHT}")
    assert result["decision"]["outcome"] == "no_signal"
    assert "get demonstrations" in result["stdout"]
    assert "grpo" not in result["stages"]
    assert result["verdict"]["decision"] == "hold"
    assert result["version"] is None
    assert client(checkout).search_model_versions(f"name = '{UNTAUGHT}'") == []
    [probe] = report(result)["probes"]
    assert probe["saved"] == "40 steps of GRPO did not run: 5,120 completions, up to 245,760 tokens."


def test_on_an_sft_model_that_solves_everything_grpo_does_not_run(controlled: dict[str, Any], checkout: Path) -> None:
    solved = output(checkout, controlled, "grpo") / "model"
    result = run(checkout, FEW, f"model.path={solved}", "sft.trainer.learning_rate=1e-7", "registry.name=solved")
    assert result["evaluation"]["sft"]["arithmetic"]["score"] >= 0.95
    assert result["decision"]["outcome"] == "no_headroom"
    assert "SFT is enough" in result["stdout"]
    assert "grpo" not in result["stages"]
    assert result["promotion"] is None
