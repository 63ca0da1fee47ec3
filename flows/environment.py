"""The environment that Prefect, MLflow, DVC and Hugging Face read when they are first imported."""

import os
from pathlib import Path

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
    """
    os.environ.update(TELEMETRY_OFF)
    homes = {
        "PREFECT_HOME": workspace / "prefect",
        "HF_HOME": workspace / "huggingface",
        "DVC_SITE_CACHE_DIR": workspace / "dvc" / "site",
        "MPLCONFIGDIR": workspace / "matplotlib",
    }
    for name, home in homes.items():
        os.environ.setdefault(name, str(home))
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
