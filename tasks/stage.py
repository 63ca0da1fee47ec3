"""What every stage task does around its own work: find the output or make it, and record it in MLflow."""

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed
from pydantic import BaseModel

from tasks import store, tracking
from tasks.config import Configuration
from tasks.errors import UserError
from tasks.launcher import Launcher
from tasks.launcher import launch as launch_here

if TYPE_CHECKING:
    from mlflow import MlflowClient

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "trl", "peft", "numpy")
"""Packages whose version a training stage's output depends on."""
CHECK_TIMEOUT = 600.0


@dataclass(frozen=True)
class Progress:
    """A progression under way: its configuration and its MLflow run."""

    config: Configuration
    client: "MlflowClient"
    experiment: str
    run_id: str
    launcher: Launcher = launch_here
    """What starts the stages' processes."""

    @property
    def stages(self) -> Path:
        """The folder of stage outputs."""
        return stages_folder(self.config)

    @property
    def folder(self) -> Path:
        """The folder of this progression's own files: logs, verdict, report."""
        return self.config.workspace / "runs" / self.run_id


def stages_folder(config: Configuration) -> Path:
    """Where the stage outputs of a project's workspace are."""
    return config.workspace / "stages"


def code(*packages: str) -> str:
    """Digest of the source of packages in this folder: a stage runs again when the code that it runs has changed."""
    here = Path(__file__).parent
    return store.code_digest(*(here / package for package in packages))


def run(
    progress: Progress,
    stage: store.Stage,
    work: Callable[[Path, str], Mapping[str, Any]],
    params: Mapping[str, Any],
    summary: Callable[[store.Output], Mapping[str, float]],
    datasets: list[tracking.DatasetVersion] | None = None,
) -> State[store.Output]:
    """Obtain a stage's output, with a child run in MLflow that says what it is or how it failed.

    Args:
        progress: the progression that the stage belongs to.
        stage: the stage and what its output depends on.
        work: fills the given folder, under the given MLflow run, and returns the facts to remember.
        params: logged to the run.
        summary: the final metrics of an output.
        datasets: logged to the run as inputs.

    Returns:
        The output, in a Prefect state named `Cached` when nothing ran.
    """
    logger = get_run_logger()
    tags = {tracking.STAGE: stage.name, "ratchet.key": stage.key}
    with tracking.run(progress.client, progress.experiment, stage.name, tags, progress.run_id) as run_id:
        tracking.log_params(progress.client, run_id, params)
        tracking.log_datasets(progress.client, run_id, datasets or [])

        def build(folder: Path) -> Mapping[str, Any]:
            why = store.explain(progress.stages, stage)
            logger.info("damaged: a file has other bytes than it was made with" if why == store.UP_TO_DATE else why)
            return {"mlflow_run_id": run_id, **work(folder, run_id)}

        output = store.obtain(progress.stages, stage, build)
        progress.client.set_tag(run_id, tracking.CACHED, str(output.cached).lower())
        if output.cached:
            progress.client.set_tag(run_id, "ratchet.source_run", output.manifest.facts["mlflow_run_id"])
        tracking.log_metrics(progress.client, run_id, summary(output))
        if not output.cached:
            logger.info("done in %.1f s", output.manifest.seconds)
            return Completed(message=f"{stage.name} {stage.key}", data=output)
    message = f"up to date, nothing to run ({stage.key})"
    logger.info(message)
    return Completed(name="Cached", message=message, data=output)


def launch(
    progress: Progress, name: str, module: str, spec: BaseModel, folder: Path, run_id: str, timeout: float
) -> None:
    """Run a stage's process to its end: its lines go to the log, its history to MLflow as curves.

    Args:
        progress: the progression that the stage belongs to.
        name: of the stage, for its files.
        module: the process is `python -m MODULE SPEC`.
        spec: what the process is told.
        folder: where the process writes its output.
        run_id: the stage's MLflow run.
        timeout: seconds.

    Raises:
        UserError: the process says that the mistake is the user's.
        StageFailed: it ended in any other way than well, or ran past `timeout` seconds.
    """
    logger = get_run_logger()
    progress.folder.mkdir(parents=True, exist_ok=True)
    spec_file = progress.folder / f"{name}.json"
    spec_file.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
    log = progress.folder / f"{name}.log"
    history = tracking.HistoryForwarder(progress.client, run_id, folder / "history.jsonl")
    try:
        progress.launcher(
            module,
            spec_file,
            log=log,
            on_line=lambda line: logger.log(WARNING if line.startswith("alarm") else INFO, "%s", line),
            on_tick=history.forward,
            timeout=timeout,
        )
    finally:
        if log.exists():
            progress.client.log_artifact(run_id, str(log))
        progress.client.log_artifact(run_id, str(spec_file))


def check(config: Configuration, module: str, spec: Callable[[Path], BaseModel]) -> None:
    """Run a process that only checks; `spec` is given a folder that is gone afterwards.

    Raises:
        UserError: what it found wrong.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "check.json"
        file.write_text(spec(folder).model_dump_json(), encoding="utf-8")
        try:
            launch_here(
                module,
                file,
                log=folder / "check.log",
                on_line=lambda _line: None,
                on_tick=lambda: None,
                timeout=CHECK_TIMEOUT,
            )
        except UserError as error:
            raise UserError("\n".join(_placed(config, line) for line in str(error).splitlines())) from None


def _placed(config: Configuration, message: str) -> str:
    """A message that begins with a key, or names an argument of one, with the place where that was given."""
    key = re.match(r"[a-z_]+(\.\w+)*", message)
    argument = re.search(r"has no argument '(\w+)'", message)
    path = [*(key[0].split(".") if key else []), *([argument[1]] if argument else [])]
    return f"{config.place(*path)}: {message}"
