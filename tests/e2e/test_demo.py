"""The default run, for real: SFT and GRPO on the tiny base, lm-eval, the gate, the registry.

The tests of this file follow one checkout through its life, in order.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.e2e.conftest import ratchet, run, start

pytestmark = pytest.mark.slow

STAGES = ["prepare", "sft", "probe-sft", "grpo", "evaluate"]


@pytest.fixture(scope="module")
def checkout(fresh_checkout: Callable[..., Path]) -> Path:
    return fresh_checkout("demo")


@pytest.fixture(scope="module")
def first(checkout: Path) -> dict[str, Any]:
    return run(checkout)


@pytest.fixture(scope="module")
def again(checkout: Path, first: dict[str, Any]) -> dict[str, Any]:
    return run(checkout)


def client(checkout: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=f"sqlite:///{checkout / '.ratchet' / 'mlflow' / 'mlflow.db'}")


def runs(checkout: Path) -> list[Any]:
    tracking = client(checkout)
    return list(tracking.search_runs([e.experiment_id for e in tracking.search_experiments()], max_results=1000))


def children(checkout: Path, run_id: str) -> dict[str, Any]:
    return {r.info.run_name: r for r in runs(checkout) if r.data.tags.get("mlflow.parentRunId") == run_id}


def answers(checkout: Path, result: dict[str, Any], model: str) -> str:
    stage = f"evaluate-{result['stages']['evaluate']['key']}"
    return (checkout / ".ratchet" / "stages" / stage / "records" / model / "arithmetic.jsonl").read_text()


def model_files(checkout: Path, result: dict[str, Any], stage: str) -> dict[str, str]:
    manifest = checkout / ".ratchet" / "stages" / f"{stage}-{result['stages'][stage]['key']}" / "manifest.json"
    files = json.loads(manifest.read_bytes())["files"]
    return {name: sha for name, sha in files.items() if name.startswith("model/")}


def test_the_climb_is_real_and_the_candidate_is_promoted(first: dict[str, Any]) -> None:
    scores = {model: tasks["arithmetic"]["score"] for model, tasks in first["evaluation"].items()}
    assert list(scores) == ["base", "sft", "grpo"]
    assert scores["grpo"] >= scores["sft"] + 0.40
    assert first["verdict"]["decision"] == "promote"
    assert first["promotion"] == {"name": "arithmetic", "version": "1", "alias": "champion", "previous": None}
    assert [first["stages"][name]["cached"] for name in STAGES] == [False] * 5


def test_all_models_answered_the_same_items(first: dict[str, Any], checkout: Path) -> None:
    items = [
        [json.loads(line)["prompt_hash"] for line in answers(checkout, first, model).splitlines()]
        for model in first["evaluation"]
    ]
    assert items[0] == items[1] == items[2]
    assert len(set(items[0])) == first["evaluation"]["sft"]["arithmetic"]["n"]


def test_mlflow_tells_the_whole_story(first: dict[str, Any], checkout: Path) -> None:
    parent = client(checkout).get_run(first["run_id"])
    stages = children(checkout, first["run_id"])
    assert parent.info.status == "FINISHED"
    assert {name: stages[name].info.status for name in STAGES} == dict.fromkeys(STAGES, "FINISHED")
    assert parent.data.tags["ratchet.verdict"] == "promote"
    assert stages["grpo"].data.params["trainer.num_generations"] == "8"
    for name in ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "entropy"):
        curve = client(checkout).get_metric_history(stages["grpo"].info.run_id, name)
        assert len(curve) >= 10, name
    [dataset] = stages["sft"].inputs.dataset_inputs
    pointer = (checkout / "data" / "prepared.dvc").read_text()
    assert dataset.dataset.digest in pointer
    [source] = [d.dataset for d in stages["prepare"].inputs.dataset_inputs if d.dataset.name == "chains"]
    assert source.digest in (checkout / "data" / "dvc.lock").read_text()


def test_the_version_says_what_stands_behind_it(first: dict[str, Any], checkout: Path) -> None:
    version = client(checkout).get_model_version_by_alias("arithmetic", "champion")
    assert version.version in (1, "1")
    assert version.tags["progression"] == first["run_id"]
    assert version.tags["verdict"] == "promote"
    assert version.tags["data_md5"].endswith(".dir")
    assert len(version.tags["mlflow.source.git.commit"]) == 40
    assert float(version.tags["score/arithmetic/acc"]) == pytest.approx(
        first["evaluation"]["grpo"]["arithmetic"]["acc"], abs=1e-5
    )


def test_the_champion_answers(first: dict[str, Any], checkout: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{checkout / '.ratchet' / 'mlflow' / 'mlflow.db'}")
    model = mlflow.pyfunc.load_model("models:/arithmetic@champion")
    assert model.predict([{"messages": [{"role": "user", "content": "7-5+5+7"}]}]) == ["7-5=2\n2+5=7\n7+7=14\n#14"]


def test_the_report_is_there_and_stands_alone(first: dict[str, Any], checkout: Path) -> None:
    page = Path(first["report"]).read_text()
    assert first["run_id"] in page
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    out = checkout / "again.html"
    done = ratchet(checkout, "report", first["run_id"][:8], "--out", str(out))
    assert done.stdout.strip() == str(out)
    assert out.read_text() == page


def test_the_same_again_trains_nothing_and_promotes_nothing(again: dict[str, Any], checkout: Path) -> None:
    assert [again["stages"][name]["cached"] for name in STAGES] == [True] * 5
    assert again["promotion"] is None
    assert again["verdict"]["decision"] == "hold"
    assert "champion already" in again["verdict"]["reasons"][0]
    assert "nothing was trained" in again["stdout"]
    assert len(client(checkout).search_model_versions("name = 'arithmetic'")) == 1


def test_a_dry_run_says_what_would_run_and_why(again: dict[str, Any], checkout: Path) -> None:
    before = len(runs(checkout))
    done = ratchet(checkout, "run", "--dry-run", "-S", "grpo.trainer.learning_rate=2e-4")
    plan = done.stdout[done.stdout.index("\nstage ") :].splitlines()[2:]
    assert [line.split()[0] for line in plan] == STAGES
    assert ["up to date" in line for line in plan] == [True, True, True, False, False]
    assert "params.trainer.learning_rate 0.0003 -> 0.0002" in plan[3]
    assert len(runs(checkout)) == before


def test_a_learning_rate_of_zero_is_not_promoted(again: dict[str, Any], checkout: Path) -> None:
    still = run(checkout, "grpo.trainer.learning_rate=0.0", "grpo.trainer.max_steps=2")
    assert still["stages"]["sft"]["cached"] is True
    assert still["verdict"]["decision"] != "promote"
    assert still["promotion"] is None
    assert answers(checkout, still, "grpo") == answers(checkout, still, "sft")
    assert "champion" in still["evaluation"]
    assert "Nothing was promoted" in still["stdout"]
    champion = client(checkout).get_model_version_by_alias("arithmetic", "champion")
    assert champion.version in (1, "1")


def test_a_killed_stage_fails_the_run_and_the_next_run_completes(again: dict[str, Any], checkout: Path) -> None:
    overrides = ["-S", "grpo.trainer.max_steps=4", "-S", "grpo.samples_per_step=1"]
    process = start(checkout, "run", *overrides)
    victim = wait_for_stage(checkout, process, "grpo")
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ratchet: tasks.training.grpo was killed by SIGKILL" in err
    statuses = {r.info.status for r in runs(checkout)}
    assert statuses == {"FINISHED", "FAILED"}
    done = ratchet(checkout, "run", *overrides)
    assert done.returncode == 0, done.stderr[-3000:]


def wait_for_stage(checkout: Path, process: Any, stage: str) -> int:
    """The process id of a running stage of this checkout, once it has begun to log."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()[-3000:]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                if f"tasks.training.{stage}" in command and any(str(checkout) in part for part in command):
                    return int(entry.name)
        time.sleep(0.2)
    raise AssertionError(f"{stage} did not start")


def test_a_second_copy_gives_the_same_answers_and_the_same_model(
    first: dict[str, Any], checkout: Path, fresh_checkout: Callable[..., Path]
) -> None:
    other = fresh_checkout("second", in_git=False)
    second = run(other, below="docs")
    for stage in ("sft", "grpo"):
        assert model_files(other, second, stage) == model_files(checkout, first, stage)
    for model in ("base", "sft", "grpo"):
        assert answers(other, second, model) == answers(checkout, first, model)


def test_nothing_is_written_outside_the_checkout(first: dict[str, Any], checkout: Path) -> None:
    home = checkout.parent / "home"
    assert not home.exists() or not [path for path in home.rglob("*") if path.is_file()]


def test_status_shows_champion_and_verdicts(again: dict[str, Any], checkout: Path) -> None:
    shown = json.loads(ratchet(checkout, "status", "--json").stdout)
    assert shown["champion"]["version"] in (1, "1")
    assert {"promote", "hold"} <= {run["verdict"] for run in shown["runs"]}
    assert "models:/arithmetic@champion is version 1" in ratchet(checkout, "status").stdout
