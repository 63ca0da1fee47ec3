"""Stage outputs on disk: one folder per stage and key, valid or not there at all.

A stage's key is a digest of everything that its output depends on. An output is written in a `.partial`
folder, gets a `manifest.json` with the digest of each file, and is published by one rename; so a
folder without `.partial` is complete, and a damaged file in it is recognised.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import BaseModel, ValidationError

MANIFEST = "manifest.json"
UP_TO_DATE = "up to date"


@dataclass(frozen=True)
class Stage:
    """A stage of a progression and all that its output depends on."""

    name: str
    inputs: Mapping[str, Any]
    """JSON values: parameters, keys of parents, digests of data and code, package versions."""

    @cached_property
    def key(self) -> str:
        """16 hex digits that stand for the name and the inputs."""
        return digest({"stage": self.name, "inputs": self.inputs})[:16]


class Manifest(BaseModel):
    """What is known of a finished stage, beside its files."""

    stage: str
    key: str
    inputs: dict[str, Any]
    facts: dict[str, Any]
    """What the stage wants remembered, such as the md5 of a data set or the id of its MLflow run."""
    files: dict[str, str]
    """SHA-256 of each file, by its path in the folder."""
    sizes: dict[str, int]
    """Bytes of each file."""
    seconds: float
    finished: float
    """Seconds since the epoch."""

    def model_digest(self) -> str:
        """SHA-256 over the files of `model/`: equal for equal models, wherever they were trained."""
        return digest({path: sha for path, sha in self.files.items() if path.startswith("model/")})


@dataclass(frozen=True)
class Output:
    """A valid stage output."""

    folder: Path
    manifest: Manifest
    cached: bool = field(compare=False)
    """Whether it was there before and nothing ran."""


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in it."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digests[path.relative_to(folder).as_posix()] = file_digest(path)
    return digests


def code_digest(*folders: Path, endings: tuple[str, ...] = (".py",)) -> str:
    """SHA-256 over the files of the given folders that end so, without their place on this machine."""
    sources = {
        f"{folder.name}/{path}": sha
        for folder in folders
        for path, sha in file_digests(folder).items()
        if path.endswith(endings)
    }
    return digest(sources)


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of packages."""
    return {name: version(name) for name in names}


def output_folder(stages: Path, stage: Stage) -> Path:
    """Where a stage's output is published."""
    return stages / f"{stage.name}-{stage.key}"


def read(stages: Path, stage: Stage) -> Output | None:
    """The published output of a stage, if it is there and every file has its digest."""
    folder = output_folder(stages, stage)
    manifest = peek(stages, stage)
    if manifest is None or file_digests(folder) != {**manifest.files, MANIFEST: file_digest(folder / MANIFEST)}:
        return None
    return Output(folder, manifest, cached=True)


def peek(stages: Path, stage: Stage) -> Manifest | None:
    """What a published output says of itself, without looking at its files."""
    return _manifest(output_folder(stages, stage))


def obtain(stages: Path, stage: Stage, build: Callable[[Path], Mapping[str, Any]]) -> Output:
    """The output of a stage: what is published, or else what `build` makes now.

    `build` fills the empty folder it is given and returns the facts to remember. Two processes that want the same
    stage take turns, and the second finds the first one's output. The lock is the operating system's: a crash
    releases it.
    """
    stages.mkdir(parents=True, exist_ok=True)
    folder = output_folder(stages, stage)
    with FileLock(stages / f"{folder.name}.lock"):
        published = read(stages, stage)
        if published:
            return published
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        started = time.monotonic()
        facts = dict(build(partial))
        manifest = Manifest(
            stage=stage.name,
            key=stage.key,
            inputs=dict(stage.inputs),
            facts=facts,
            files=file_digests(partial),
            sizes=_sizes(partial),
            seconds=round(time.monotonic() - started, 3),
            finished=time.time(),
        )
        (partial / MANIFEST).write_text(manifest.model_dump_json(indent=2), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
        return Output(folder, manifest, cached=False)


def explain(stages: Path, stage: Stage) -> str:
    """Why a stage would run, against the newest output it has; or `up to date`.

    For people: of the files of an output it looks at the sizes only, where `obtain` looks at every byte.
    """
    manifest = peek(stages, stage)
    if manifest is not None:
        sizes = _sizes(output_folder(stages, stage))
        damaged = next((path for path, size in manifest.sizes.items() if sizes.get(path) != size), None)
        return f"damaged: {damaged}" if damaged else UP_TO_DATE
    earlier = [
        known
        for path in stages.glob(f"{stage.name}-*")
        if not path.name.endswith((".partial", ".lock")) and (known := _manifest(path)) and known.stage == stage.name
    ]
    if not earlier:
        return "never run"
    newest = max(earlier, key=lambda manifest: manifest.finished)
    return "changed: " + "; ".join(_differences(newest.inputs, dict(stage.inputs)))


def _manifest(folder: Path) -> Manifest | None:
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def path_digest(path: Path) -> str:
    """SHA-256 of a file, or over the files of a folder."""
    return digest(file_digests(path)) if path.is_dir() else file_digest(path)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*new, *(key for key in old if key not in new)]
        below = [
            _differences(old.get(key, "unset"), new.get(key, "unset"), f"{path}.{key}" if path else key) for key in keys
        ]
        return [difference for differences in below for difference in differences]
    if old == new:
        return []
    readable = all(len(str(value)) <= 40 for value in (old, new)) and not path.startswith(("code", "parents", "data"))
    return [f"{path} {old} -> {new}" if readable else path]
