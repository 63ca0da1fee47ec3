"""For all tests: no telemetry, and an MLflow on sqlite in a folder of its own for those that ask for one."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flows.environment import TELEMETRY_OFF

if TYPE_CHECKING:
    from mlflow import MlflowClient

os.environ.update(TELEMETRY_OFF)
# Tests run side by side, a process to a core: threads that spin while they wait for another one slow all of them down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def client(workspace: Path) -> "MlflowClient":
    from tasks import tracking

    return tracking.connect(workspace)
