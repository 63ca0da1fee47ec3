"""The environment that Prefect, MLflow, DVC and Hugging Face read when they are first imported."""

import logging
import os
from pathlib import Path

from tasks.errors import UserError

TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "ITERATIVE_DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def configure(workspace: Path) -> None:
    """Turn telemetry off and keep every cache and home in the workspace.

    Call before those packages are imported; child processes inherit it. A home that the user set, such as a shared
    `HF_HOME` or the `PREFECT_HOME` of a server's profile, stays as it is.

    Raises:
        UserError: the workspace cannot be written.
    """
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"workspace {workspace} cannot be made ({error.strerror}); name another in `workspace`"
        ) from None
    os.environ.update(TELEMETRY_OFF)
    # A login on this machine stays good for gated models; it is only read.
    login = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "token"
    os.environ.setdefault("HF_TOKEN_PATH", str(login))
    homes = {
        "PREFECT_HOME": workspace / "prefect",
        "HF_HOME": workspace / "huggingface",
        "DVC_SITE_CACHE_DIR": workspace / "dvc" / "site",
        "MPLCONFIGDIR": workspace / "matplotlib",
    }
    for name, home in homes.items():
        os.environ.setdefault(name, str(home))
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


def log_mistakes_briefly() -> None:
    """Have Prefect log a user's mistake by its message alone: a traceback of our code tells a user nothing.

    Call after Prefect has set up its logging, which its import does.
    """
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_traceback_of_mistakes)


def _without_traceback_of_mistakes(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.exc_info = None
    return True
