"""Fresh checkouts of this project, and its command run in them as a user would."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = ("PREFECT_", "HF_", "DVC_", "MLFLOW_", "MPLCONFIGDIR", "XDG_")
"""Beginnings of the variables by which a machine's own settings would reach into a test."""


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture(scope="session")
def fresh_checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes checkouts of what git would commit here, with nothing that runs have left; or plain folders of it."""

    def make(name: str, in_git: bool = True) -> Path:
        checkout = tmp_path_factory.mktemp(name) / "my ratchet"
        for file in git(PROJECT, "ls-files", "-co", "--exclude-standard", "-z").split("\0"):
            if file and (PROJECT / file).is_file():
                (checkout / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / file, checkout / file)
        if in_git:
            git(checkout, "init", "-q")
            git(checkout, "add", "-A")
            git(checkout, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "checkout")
        return checkout

    return make


def start(checkout: Path, *arguments: str, below: str = ".") -> "subprocess.Popen[str]":
    """`ratchet ARGUMENTS` in a folder of a checkout, with its own code and none of this machine's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environment |= {"HOME": str(checkout.parent / "home"), "PYTHONPATH": str(checkout)}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=checkout / below,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ratchet(checkout: Path, *arguments: str, below: str = ".") -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    process = start(checkout, *arguments, below=below)
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def run(checkout: Path, *overrides: str, below: str = ".", arguments: Sequence[str] = ()) -> dict[str, Any]:
    """`ratchet run` with overrides, which must succeed: its JSON."""
    file = checkout / "result.json"
    settings = [argument for override in overrides for argument in ("-S", override)]
    done = ratchet(checkout, "run", "--json", str(file), *arguments, *settings, below=below)
    assert done.returncode == 0, done.stderr[-5000:]
    result: dict[str, Any] = json.loads(file.read_bytes())
    return {**result, "stdout": done.stdout, "stderr": done.stderr}
