"""DVC: the raw sources and the prepared dataset, each under the md5 that DVC records for it.

The cache and the remote named `local` lie in the workspace. Another default remote of the project
(`dvc remote add --default NAME URL`) is used in its place.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tasks.errors import UserError

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import PipelineStage as Stage

IGNORED = ".venv\n.ratchet\n"
"""A new project's .dvcignore: where no pointers are, and where looking for them would take long."""


@dataclass(frozen=True)
class _Pointer:
    """What a `.dvc` file or a `dvc.lock` says of a file."""

    file: Path
    md5: str


def source_md5(root: Path, path: Path) -> str:
    """The md5 of a file, as DVC would record it; of a file that is not there, the one that DVC has on record.

    Cheap, and without DVC, so that a run can be planned with it.

    Raises UserError for a file that is neither there nor on record.
    """
    file = _inside(root, path)
    if file.is_file():
        return _md5(file)
    pointer = _pointer(root, file)
    if pointer is None:
        raise UserError(
            f"{path}: there is no such file, and DVC has none on record (no {file.name}.dvc beside it, nothing in a "
            "dvc.lock); put the file there or correct the path"
        )
    return pointer.md5


def materialise(root: Path, workspace: Path, paths: Sequence[Path]) -> None:
    """See to it that every file is there, is what DVC has on record, and is in the cache and the default remote.

    A file that is missing is pulled, or else reproduced by its stage in a dvc.yaml. A file that DVC does not know yet
    is added, unless git tracks it; one with a `.dvc` file that was edited is added again.

    Raises UserError for a file outside the project, for one that cannot be obtained, and for the output of a stage
    that differs from its dvc.lock.
    """
    missing = [path for path in paths if not _is_on_record(root, workspace, _inside(root, path))]
    if not missing:
        return
    with _repo(root, workspace) as repo:
        for path in missing:
            _materialise(repo, root, path)


def version_folder(root: Path, workspace: Path, built: Path, name: str) -> str:
    """Publish a copy of a prepared dataset as `data/NAME`, put it under DVC and push it to the default remote.

    Returns the md5 that DVC records, which ends in `.dir`.
    """
    published = root / "data" / name
    with _repo(root, workspace) as repo:
        if not published.is_dir() or folder_md5(published) != folder_md5(built):
            _replace_folder(published, built)
        [stage] = repo.add(str(published))
        repo.push(targets=[str(published)])
        md5: str = stage.outs[0].hash_info.value
        return md5


def is_published(root: Path, name: str, md5: str) -> bool:
    """Whether `data/NAME` and its pointer are those of the prepared dataset with this md5. Cheap, and without DVC."""
    published = root / "data" / name
    pointer = _pointer(root, published)
    return pointer is not None and pointer.md5 == md5 and published.is_dir() and folder_md5(published) == md5


def folder_md5(folder: Path) -> str:
    """The md5 that DVC records for a folder: that of the list of its files with their md5, ending in `.dir`."""
    files = sorted((file.relative_to(folder).as_posix(), file) for file in folder.rglob("*") if file.is_file())
    listing = json.dumps([{"md5": _md5(file), "relpath": relpath} for relpath, file in files])
    return f"{hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest()}.dir"


def _inside(root: Path, path: Path) -> Path:
    file = Path(os.path.normpath(root / path))
    if not file.is_relative_to(root):
        raise UserError(
            f"{path}: lies outside the project {root}, where it cannot be versioned; copy it into the project, "
            f"or import it: dvc import-url {file} data/{file.name}"
        )
    if file.is_dir():
        raise UserError(f"{path}: is a folder, not a file")
    return file


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _pointer(root: Path, file: Path) -> _Pointer | None:
    own = file.with_name(f"{file.name}.dvc")
    locks = [folder / "dvc.lock" for folder in file.parents if folder.is_relative_to(root)]
    for pointer in (own, *locks):
        if pointer.is_file():
            for out in _outs(pointer):
                if pointer.parent / out["path"] == file and "md5" in out:
                    return _Pointer(pointer, out["md5"])
    return None


def _outs(pointer: Path) -> Iterator[dict[str, Any]]:
    try:
        content = YAML(typ="safe").load(pointer.read_text(encoding="utf-8")) or {}
        for stage in [content, *content.get("stages", {}).values()]:
            yield from stage.get("outs", [])
    except (YAMLError, AttributeError) as error:
        raise UserError(f"{pointer}: is not a file of DVC's ({error}); restore it from version control") from None


def _is_on_record(root: Path, workspace: Path, file: Path) -> bool:
    pointer = _pointer(root, file)
    if pointer is None or not file.is_file() or _md5(file) != pointer.md5:
        return False
    return (_cache(workspace) / "files" / "md5" / pointer.md5[:2] / pointer.md5[2:]).is_file()


def _materialise(repo: "Repo", root: Path, path: Path) -> None:
    file = _inside(root, path)
    pointer = _pointer(root, file)
    if not file.is_file():
        _obtain(repo, root, file, path)
    elif pointer is None:
        if repo.scm.is_tracked(str(file)):
            return
        _add(repo, file, path)
    elif _md5(file) == pointer.md5:
        [out] = repo.find_outs_by_path(str(file))
        out.commit()
    elif pointer.file.suffix == ".dvc":
        _add(repo, file, path)
    else:
        recorded = pointer.file.relative_to(root)
        raise UserError(
            f"{path}: differs from what {recorded} has on record (md5 {_md5(file)}, not {pointer.md5}); delete it to "
            f"have it made again, or accept it with: dvc commit {recorded.with_name('dvc.yaml')}"
        )
    repo.push(targets=[str(file)])


def _add(repo: "Repo", file: Path, path: Path) -> None:
    from dvc.exceptions import DvcException

    try:
        repo.add(str(file))
    except DvcException as error:
        raise UserError(f"{path}: DVC cannot add it: {error}") from error


def _obtain(repo: "Repo", root: Path, file: Path, path: Path) -> None:
    from dvc.exceptions import CheckoutError, OutputNotFoundError

    try:
        out, *_ = repo.find_outs_by_path(str(file), strict=False)
    except OutputNotFoundError:
        raise UserError(f"{path}: there is no such file, and DVC does not know it") from None
    try:
        repo.pull(targets=[str(file)])
    except CheckoutError as error:
        if out.stage.cmd is None:
            raise UserError(
                f"{path}: is neither in the cache nor in the default remote; put the file back, or name the remote "
                "that has it: dvc remote add --default NAME URL"
            ) from error
        _reproduce(repo, out.stage, root, path)


def _reproduce(repo: "Repo", stage: "Stage", root: Path, path: Path) -> None:
    """Run a stage of a dvc.yaml. Where an output differs from the dvc.lock, the lock stays as it was."""
    from dvc.exceptions import DvcException

    lock = Path(stage.dvcfile.path).with_name("dvc.lock")
    before = lock.read_bytes() if lock.is_file() else None
    recorded = {out["path"]: out["md5"] for out in _outs(lock)} if before is not None else {}
    name = f"{lock.with_name('dvc.yaml').relative_to(root)}:{stage.name}"
    try:
        with _own_python_first(), chdir(root):  # DVC's run cache takes the working directory for the project
            repo.reproduce(name)
    except DvcException as error:
        raise UserError(f"{path}: its stage {name} failed: {error.__cause__ or error}") from error
    made = {out["path"]: out["md5"] for out in _outs(lock)}
    changed = [out for out, md5 in recorded.items() if made.get(out) != md5]
    if before is not None and changed:
        _write(lock, before)
        raise UserError(
            f"{path}: its stage {name} no longer makes what {lock.relative_to(root)} has on record "
            f"({', '.join(changed)} differs); undo the change to the stage, or accept it: "
            f"dvc repro {name}, and commit {lock.relative_to(root)}"
        )


@contextmanager
def _own_python_first() -> Iterator[None]:
    """`python` in a stage's command is the interpreter that runs this."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _write(file: Path, content: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}-", delete=False) as stream:
        stream.write(content)
    Path(stream.name).replace(file)


def _replace_folder(published: Path, built: Path) -> None:
    published.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=published.parent, prefix=f".{published.name}-") as beside:
        shutil.copytree(built, Path(beside) / "new")
        if published.exists():
            published.rename(Path(beside) / "old")
        (Path(beside) / "new").rename(published)


def _cache(workspace: Path) -> Path:
    return workspace / "dvc" / "cache"


@contextmanager
def _repo(root: Path, workspace: Path) -> Iterator["Repo"]:
    """The project's DVC repository, made if there is none yet, for one caller at a time; DVC's lock is waited for."""
    from dvc.config import ConfigError
    from dvc.repo import Repo
    from dvc_objects.fs.errors import RemoteMissingDepsError

    # DVC's errors come as exceptions. The rest, which it writes on stdout too, is of steps that nobody asked for.
    for name in ("dvc", "dvc_data", "dvc_objects"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    places = {"cache": {"dir": str(_cache(workspace))}, "remote": {"local": {"url": str(workspace / "dvc" / "remote")}}}
    in_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    settings = places if in_git else {**places, "core": {"no_scm": True}}
    with FileLock(workspace / "dvc" / "caller.lock"):
        if not (root / ".dvc").is_dir():
            _init(root, places, in_git)
        try:
            with Repo(str(root), config=settings, _wait_for_lock=True) as repo:
                repo.config["core"].setdefault("remote", "local")
                yield repo
        except (ConfigError, RemoteMissingDepsError) as error:
            raise UserError(f"{root / '.dvc' / 'config'}: {error}") from error


def _init(root: Path, places: dict[str, Any], in_git: bool) -> None:
    from dvc.repo import Repo

    ignore = root / ".dvcignore"
    if not ignore.exists():
        ignore.write_text(IGNORED, encoding="utf-8")
    with (
        Repo.init(str(root), no_scm=not in_git, subdir=in_git and not (root / ".git").exists()) as repo,
        repo.config.edit("repo") as config,
    ):
        config["core"] |= {"remote": "local", "analytics": False, "autostage": False}
        config["cache"] |= places["cache"]
        config["remote"] |= places["remote"]
