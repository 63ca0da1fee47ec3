"""Runs in a real MLflow on sqlite: nested, with true statuses, curves and dataset versions."""

import json
import multiprocessing
import subprocess
import time
from multiprocessing import Queue
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tasks import tracking
from tasks.errors import UserError


@pytest.fixture(scope="module")
def experiment(client: MlflowClient, workspace: Path) -> str:
    return tracking.experiment_id(client, "sums", workspace)


def status(client: MlflowClient, run_id: str) -> str:
    return str(client.get_run(run_id).info.status)


def test_an_experiment_is_made_once_with_its_artifacts_in_the_workspace(
    client: MlflowClient, experiment: str, workspace: Path
) -> None:
    assert tracking.experiment_id(client, "sums", workspace) == experiment
    assert client.get_experiment(experiment).artifact_location == (workspace / "mlflow" / "artifacts").as_uri()
    assert tracking.exists(workspace)


def test_a_run_that_ends_well_is_finished_and_hangs_below_its_parent(client: MlflowClient, experiment: str) -> None:
    with (
        tracking.run(client, experiment, "parent", {tracking.PROGRESSION: "true"}) as parent,
        tracking.run(client, experiment, "sft", {}, parent) as child,
    ):
        assert status(client, parent) == status(client, child) == "RUNNING"
    assert status(client, parent) == status(client, child) == "FINISHED"
    assert client.get_run(child).data.tags[tracking.PARENT] == parent


@pytest.mark.parametrize(
    ("error", "expected"), [(ValueError("out of luck"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_run_that_ends_badly_says_so(
    client: MlflowClient, experiment: str, error: BaseException, expected: str
) -> None:
    with pytest.raises(type(error)), tracking.run(client, experiment, "sft", {}) as run_id:
        raise error
    assert status(client, run_id) == expected
    assert client.get_run(run_id).data.tags.get(tracking.REASON) == (
        "out of luck" if expected == "FAILED" else "interrupted"
    )


def test_nested_parameters_are_logged_under_dotted_names(client: MlflowClient, experiment: str) -> None:
    many = {f"p{index}": index for index in range(150)}
    with tracking.run(client, experiment, "sft", {}) as run_id:
        tracking.log_params(
            client, run_id, {"trainer": {"learning_rate": 0.1}, "lora": None, "long": "x" * 9000, **many}
        )
    params = client.get_run(run_id).data.params
    assert (params["trainer.learning_rate"], params["lora"], len(params["long"])) == ("0.1", "None", 6000)
    assert len(params) == 153


def test_history_becomes_curves_as_its_lines_are_completed(
    client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    history = tmp_path / "history.jsonl"
    with tracking.run(client, experiment, "grpo", {}) as run_id:
        forwarder = tracking.HistoryForwarder(client, run_id, history)
        forwarder.forward()
        history.write_text(json.dumps({"step": 1, "reward": 0.1}) + "\n" + '{"step": 2, "rew')
        forwarder.forward()
        assert [m.step for m in client.get_metric_history(run_id, "reward")] == [1]
        with history.open("a") as stream:
            stream.write('ard": 0.2}\n')
        forwarder.forward()
        forwarder.forward()
    curve = [(metric.step, metric.value) for metric in client.get_metric_history(run_id, "reward")]
    assert curve == [(1, 0.1), (2, 0.2)]


def test_datasets_stand_in_the_run_under_their_md5(client: MlflowClient, experiment: str) -> None:
    version = tracking.DatasetVersion("prepared", "data/prepared", "0123456789abcdef0123456789abcdef.dir", "train")
    with tracking.run(client, experiment, "sft", {}) as run_id:
        tracking.log_datasets(client, run_id, [version])
    [logged] = client.get_run(run_id).inputs.dataset_inputs
    assert (logged.dataset.name, logged.dataset.digest) == ("prepared", version.md5)
    assert [(tag.key, tag.value) for tag in logged.tags] == [("mlflow.data.context", "train")]


def test_progressions_are_found_by_the_start_of_their_id(client: MlflowClient, experiment: str) -> None:
    with tracking.run(client, experiment, "progression", {tracking.PROGRESSION: "true"}) as run_id:
        pass
    assert tracking.find_run(client, run_id[:12]).info.run_id == run_id
    assert tracking.find_run(client, "latest").info.run_id == run_id
    assert tracking.progressions(client, 1)[0].info.run_id == run_id
    with pytest.raises(UserError, match="no progression with a run id that starts with 'zzz'"):
        tracking.find_run(client, "zzz")
    with pytest.raises(UserError, match=r"\d progressions"):
        tracking.find_run(client, "")


def hold(workspace: Path, experiment: str, started: "Queue[str]") -> None:
    client = tracking.connect(workspace)
    with (
        tracking.run(client, experiment, "progression", {}) as parent,
        tracking.alive(client, parent, workspace),
        tracking.run(client, experiment, "grpo", {}, parent) as child,
    ):
        started.put(f"{parent} {child}")
        time.sleep(60)


def test_the_runs_of_a_killed_process_are_closed_by_the_next_one_and_those_of_a_living_one_are_not(
    client: MlflowClient, experiment: str, workspace: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    started: Queue[str] = context.Queue()
    processes = [context.Process(target=hold, args=(workspace, experiment, started)) for _ in range(2)]
    held = []
    for process in processes:
        process.start()
        held.append(started.get(timeout=60).split())
    processes[0].kill()
    processes[0].join()
    with tracking.run(client, experiment, "progression", {}) as run_id, tracking.alive(client, run_id, workspace):
        assert [status(client, each) for each in held[0]] == ["KILLED", "KILLED"]
        assert [status(client, each) for each in held[1]] == ["RUNNING", "RUNNING"]
    processes[1].kill()
    processes[1].join()


def test_the_git_state_is_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert tracking.git_state(tmp_path) == {}
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "file").write_text("a")
    subprocess.run([*git, "add", "file"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-qm", "c"], cwd=tmp_path, check=True)
    clean = tracking.git_state(tmp_path)
    assert (len(clean[tracking.COMMIT]), clean[tracking.DIRTY]) == (40, "false")
    (tmp_path / "file").write_text("b")
    assert tracking.git_state(tmp_path)[tracking.DIRTY] == "true"
