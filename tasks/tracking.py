"""MLflow tracking: one run per progression, a child per stage, each with its true status.

Runs are opened by the parent process and closed from what happened, so a killed stage is FAILED, never RUNNING and
never FINISHED. Everything goes through `MlflowClient`: no global active run.
"""

import json
import logging
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tasks.config import Configuration
from tasks.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PROGRESSION, STAGE, CACHED, DECISION, VERDICT, REASON, VERSION, PROMOTED = (
    f"ratchet.{name}"
    for name in ("progression", "stage", "cached", "decision", "verdict", "reason", "version", "promoted")
)
PARENT = "mlflow.parentRunId"
COMMIT, DIRTY = "mlflow.source.git.commit", "ratchet.git.dirty"


@dataclass(frozen=True)
class DatasetVersion:
    """A dataset that a run read, as it stands in the run's inputs."""

    name: str
    path: str
    md5: str
    """As DVC records it, so that `dvc` finds these bytes again."""
    context: str
    """`source`, `train`, `dev` or `eval`."""


def tracking_uri(workspace: Path) -> str:
    """The workspace's MLflow database, by absolute path: MLflow resolves a relative one against the working folder."""
    return f"sqlite:///{workspace / 'mlflow' / 'mlflow.db'}"


def exists(workspace: Path) -> bool:
    """Whether anything was ever tracked in the workspace."""
    return (workspace / "mlflow" / "mlflow.db").is_file()


def connect(workspace: Path) -> "MlflowClient":
    """A client of the workspace's MLflow; the database is made or migrated if need be."""
    from mlflow import MlflowClient

    (workspace / "mlflow").mkdir(parents=True, exist_ok=True)
    uri = tracking_uri(workspace)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def experiment_id(client: "MlflowClient", name: str, workspace: Path) -> str:
    """The id of an experiment, which is made on first use with its artifacts in the workspace."""
    known = client.get_experiment_by_name(name)
    if known is not None:
        return str(known.experiment_id)
    artifacts = (workspace / "mlflow" / "artifacts").as_uri()
    return str(client.create_experiment(name, artifact_location=artifacts))


@contextmanager
def run(
    client: "MlflowClient", experiment: str, name: str, tags: Mapping[str, str], parent: str | None = None
) -> Iterator[str]:
    """An MLflow run, by its id, that ends as FINISHED, FAILED or (when interrupted) KILLED."""
    parent_tag = {PARENT: parent} if parent else {}
    run_id = client.create_run(experiment, run_name=name, tags={**tags, **parent_tag}).info.run_id
    try:
        yield run_id
    except Exception as error:
        client.set_tag(run_id, REASON, str(error)[:5000])
        client.set_terminated(run_id, "FAILED")
        raise
    except BaseException:
        client.set_tag(run_id, REASON, "interrupted")
        client.set_terminated(run_id, "KILLED")
        raise
    client.set_terminated(run_id, "FINISHED")


@contextmanager
def alive(client: "MlflowClient", run_id: str, workspace: Path) -> Iterator[None]:
    """Mark a progression as alive by a lock that its process holds, and close those whose process is gone.

    The operating system releases the lock of a process that dies, however it dies.
    """
    locks = workspace / "mlflow" / "alive"
    locks.mkdir(exist_ok=True)
    with FileLock(locks / run_id):
        for file in locks.iterdir():
            if file.name != run_id:
                _close_if_abandoned(client, file)
        yield
    (locks / run_id).unlink(missing_ok=True)


def _close_if_abandoned(client: "MlflowClient", file: Path) -> None:
    lock = FileLock(file, timeout=0)
    try:
        with lock:
            parent = client.get_run(file.name)
            children = client.search_runs([parent.info.experiment_id], f"tags.`{PARENT}` = '{file.name}'")
            for each in (*children, parent):
                if each.info.status == "RUNNING":
                    client.set_tag(each.info.run_id, REASON, "its process is gone")
                    client.set_terminated(each.info.run_id, "KILLED")
            file.unlink(missing_ok=True)
    except Timeout:
        pass


def log_params(client: "MlflowClient", run_id: str, params: Mapping[str, Any]) -> None:
    """Log nested parameters under dotted names."""
    from mlflow.entities import Param

    flat = dict(_flatten(params, ""))
    names = sorted(flat)
    for start in range(0, len(names), 100):
        batch = [Param(name, str(flat[name])[:6000]) for name in names[start : start + 100]]
        client.log_batch(run_id, params=batch)


def log_configuration(client: "MlflowClient", run_id: str, config: Configuration) -> None:
    """Log the resolved parameters, one by one and as the params.yaml that would give them again."""
    log_params(client, run_id, config.params.model_dump(mode="json"))
    client.log_text(run_id, config.to_yaml(), "params.yaml")


def log_metrics(client: "MlflowClient", run_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
    """Log numbers at a step."""
    _log_rows(client, run_id, [(step, metrics)])


def log_datasets(client: "MlflowClient", run_id: str, datasets: list[DatasetVersion]) -> None:
    """Log dataset versions as inputs of a run; the digest is the md5 of DVC."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    inputs = [
        DatasetInput(
            Dataset(name=d.name, digest=d.md5, source_type="dvc", source=json.dumps({"path": d.path, "md5": d.md5})),
            tags=[InputTag("mlflow.data.context", d.context)],
        )
        for d in datasets
    ]
    client.log_inputs(run_id, inputs)


class HistoryForwarder:
    """Forwards the lines that a stage appends to its history.jsonl to an MLflow run, as curves."""

    def __init__(self, client: "MlflowClient", run_id: str, history: Path) -> None:
        self._client, self._run_id, self._history = client, run_id, history
        self._offset = 0

    def forward(self) -> None:
        """Log every complete line that came since the last call.

        Where MLflow does not take them they wait for the next call: a training does not end for the sake of its
        curves, and the stage's output keeps the whole history anyway.
        """
        from mlflow.exceptions import MlflowException

        try:
            self._forward()
        except MlflowException as error:
            logging.getLogger(__name__).warning("MLflow does not take the curves now: %s", error)

    def _forward(self) -> None:
        if not self._history.exists():
            return
        with self._history.open("rb") as stream:
            stream.seek(self._offset)
            text = stream.read()
        complete = text[: text.rfind(b"\n") + 1]
        rows = [json.loads(line) for line in complete.splitlines()]
        _log_rows(
            self._client,
            self._run_id,
            [(row["step"], {name: value for name, value in row.items() if name != "step"}) for row in rows],
        )
        self._offset += len(complete)


def find_run(client: "MlflowClient", prefix: str) -> "Run":
    """The progression's run whose id starts with `prefix`; `latest` is the newest.

    Raises:
        UserError: no run, or more than one, has that id.
    """
    runs = progressions(client, 1 if prefix == "latest" else 1000)
    found = runs if prefix == "latest" else [run for run in runs if run.info.run_id.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not runs:
        raise UserError("no progression has run in this workspace yet: `ratchet run` starts one")
    problem = "no progression" if not found else f"{len(found)} progressions"
    raise UserError(f"{problem} with a run id that starts with {prefix!r}: `ratchet status` lists them")


def progressions(client: "MlflowClient", count: int, name: str | None = None) -> list["Run"]:
    """The newest progressions, newest first: of the registered model `name`, or of all in the workspace."""
    found = client.search_experiments()
    experiments = [each.experiment_id for each in found if name in (None, each.name)]
    return list(
        client.search_runs(
            experiments, f"tags.`{PROGRESSION}` = 'true'", max_results=count, order_by=["attributes.start_time DESC"]
        )
    )


def git_state(root: Path) -> dict[str, str]:
    """Tags that name the code: the commit, and whether tracked files differ from it. Empty outside a git checkout."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)  # noqa: S607
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {}
    dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
    return {COMMIT: commit, DIRTY: str(dirty).lower()}


def _log_rows(client: "MlflowClient", run_id: str, rows: list[tuple[int, Mapping[str, float]]]) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), now, step)
        for step, row in rows
        for name, value in row.items()
        if isinstance(value, int | float)
    ]
    for start in range(0, len(metrics), 1000):
        client.log_batch(run_id, metrics=metrics[start : start + 1000])


def _flatten(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, path)
        else:
            yield path, value
