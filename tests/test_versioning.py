import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.errors import UserError
from tasks.versioning import folder_md5, materialise, source_md5, version_folder

SQUARES = Path("data/made/squares.jsonl")
CUBES = Path("data/made/cubes.jsonl")
GENERATOR = """
from pathlib import Path
Path("made").mkdir(exist_ok=True)
for name, power in (("squares", 2), ("cubes", 3)):
    Path(f"made/{name}.jsonl").write_text("".join(f'{{"prompt": "{n}", "answer": {n**power}}}\\n' for n in range(9)))
"""
STAGE = {"cmd": "python make.py", "deps": ["make.py"], "outs": ["made/squares.jsonl", "made/cubes.jsonl"]}


@pytest.fixture(autouse=True)
def _dvc_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DVC_SITE_CACHE_DIR", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "dvc-home" / name))
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")


in_git_or_not = pytest.mark.parametrize("project", ["git", "plain"], indirect=True)


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "make.py").write_text(GENERATOR)
    (root / "data" / "dvc.yaml").write_text(json.dumps({"stages": {"make": STAGE}}))
    (root / ".gitignore").write_text(".ratchet/\n")
    if getattr(request, "param", "git") == "git":
        subprocess.run(["git", "init", "-q", root], check=True)
    return root


def clone(project: Path, to: Path) -> Path:
    """The project as version control has it: no data, no workspace."""
    shutil.copytree(project, to, ignore=shutil.ignore_patterns(".ratchet", "made", "tmp", "mine.jsonl"))
    return to


def space(root: Path) -> Path:
    return root / ".ratchet"


def stored(root: Path, md5: str, where: str) -> Path:
    return space(root) / "dvc" / where / "files" / "md5" / md5[:2] / md5[2:]


def md5_of(file: Path) -> str:
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()


@in_git_or_not
def test_a_stage_makes_what_is_missing_with_this_python(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (project / "data" / "make.py").write_text(GENERATOR + "import sys; Path('python.txt').write_text(sys.prefix)\n")
    materialise(project, space(project), [SQUARES, CUBES])
    assert (project / "data" / "python.txt").read_text() == sys.prefix
    for path in (SQUARES, CUBES):
        md5 = source_md5(project, path)
        assert md5 == md5_of(project / path)
        assert md5 in (project / "data" / "dvc.lock").read_text()
        assert md5_of(stored(project, md5, "cache")) == md5_of(stored(project, md5, "remote")) == md5
    assert capfd.readouterr() == ("", "")


@in_git_or_not
def test_a_fresh_clone_makes_the_same_files(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    materialise(project, space(project), [SQUARES, CUBES])
    fresh = clone(project, tmp_path / "fresh")
    monkeypatch.chdir(tmp_path)
    assert source_md5(fresh, SQUARES) == source_md5(project, SQUARES)  # from dvc.lock: the file is not there yet
    assert not (fresh / SQUARES).exists()
    materialise(fresh, space(fresh), [CUBES, SQUARES])
    for path in (SQUARES, CUBES):
        assert (fresh / path).read_bytes() == (project / path).read_bytes()
    assert (fresh / "data" / "dvc.lock").read_bytes() == (project / "data" / "dvc.lock").read_bytes()


def test_a_copy_of_a_checkout_without_git_will_do(project: Path, tmp_path: Path) -> None:
    materialise(project, space(project), [SQUARES])
    copy = clone(project, tmp_path / "copy")
    shutil.rmtree(copy / ".git")
    materialise(copy, space(copy), [SQUARES])
    assert (copy / SQUARES).read_bytes() == (project / SQUARES).read_bytes()


def test_a_missing_file_is_pulled_before_it_is_made(project: Path) -> None:
    materialise(project, space(project), [SQUARES])
    made = (project / SQUARES).read_bytes()
    (project / SQUARES).unlink()
    shutil.rmtree(space(project) / "dvc" / "cache")
    (project / "data" / "make.py").write_text("raise SystemExit('must not run')")
    materialise(project, space(project), [SQUARES])
    assert (project / SQUARES).read_bytes() == made


def test_a_generator_that_makes_something_else_is_refused(project: Path, tmp_path: Path) -> None:
    materialise(project, space(project), [SQUARES])
    fresh = clone(project, tmp_path / "fresh")
    lock = (fresh / "data" / "dvc.lock").read_bytes()
    (fresh / "data" / "make.py").write_text(GENERATOR.replace('"cubes", 3', '"cubes", 4'))
    with pytest.raises(UserError, match=r"squares.*no longer makes what data/dvc.lock.*made/cubes.*dvc repro"):
        materialise(fresh, space(fresh), [SQUARES, CUBES])
    assert (fresh / "data" / "dvc.lock").read_bytes() == lock
    with pytest.raises(UserError, match=r"cubes.jsonl: differs from what data/dvc.lock.*dvc commit"):
        materialise(fresh, space(fresh), [SQUARES, CUBES])


def test_a_generator_that_fails_is_named(project: Path) -> None:
    (project / "data" / "make.py").write_text("raise SystemExit(3)")
    with pytest.raises(UserError, match=r"squares.jsonl: its stage .*make failed: .*exited with 3"):
        materialise(project, space(project), [SQUARES])


@in_git_or_not
def test_the_users_own_file_is_versioned_and_versioned_again(project: Path, tmp_path: Path) -> None:
    mine = Path("data/mine.jsonl")
    pointer = project / "data" / "mine.jsonl.dvc"
    (project / mine).write_text('{"prompt": "1+1", "answer": 2}\n')
    first = source_md5(project, mine)
    assert not pointer.exists()
    materialise(project, space(project), [mine])
    assert YAML(typ="safe").load(pointer.read_text())["outs"][0]["md5"] == first
    assert stored(project, first, "remote").read_bytes() == (project / mine).read_bytes()

    (project / mine).write_text('{"prompt": "1+2", "answer": 3}\n')
    materialise(project, space(project), [mine])
    second = source_md5(project, mine)
    assert second != first
    assert YAML(typ="safe").load(pointer.read_text())["outs"][0]["md5"] == second

    (project / mine).unlink()
    assert source_md5(project, mine) == second
    materialise(project, space(project), [mine])
    assert md5_of(project / mine) == second

    fresh = clone(project, tmp_path / "fresh")
    with pytest.raises(
        UserError, match=r"mine.jsonl: is neither in the cache nor in the default remote.*dvc remote add"
    ):
        materialise(fresh, space(fresh), [mine])


def test_a_file_that_git_tracks_is_left_to_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "project"], check=True)
    project = tmp_path / "project"
    (project / "mine.jsonl").write_text("{}\n")
    subprocess.run(["git", "-C", project, "add", "mine.jsonl"], check=True)
    materialise(project, space(project), [Path("mine.jsonl")])
    assert not (project / "mine.jsonl.dvc").exists()


def test_what_lies_about_without_a_copy_in_the_cache_is_cached(project: Path) -> None:
    materialise(project, space(project), [SQUARES, CUBES])
    shutil.rmtree(space(project) / "dvc")
    lock = (project / "data" / "dvc.lock").read_bytes()
    materialise(project, space(project), [SQUARES, CUBES])
    for path in (SQUARES, CUBES):
        assert stored(project, source_md5(project, path), "remote").is_file()
    assert (project / "data" / "dvc.lock").read_bytes() == lock


def test_when_all_is_there_dvc_is_not_even_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    materialise(project, space(project), [SQUARES, CUBES])
    monkeypatch.setitem(sys.modules, "dvc.repo", None)
    start = time.perf_counter()
    materialise(project, space(project), [SQUARES, CUBES])
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (Path("data/none.jsonl"), "data/none.jsonl: there is no such file"),
        (Path("../outside.jsonl"), r"outside.jsonl: lies outside the project .*dvc import-url .*/outside.jsonl"),
        (Path("/elsewhere/problems.jsonl"), "dvc import-url /elsewhere/problems.jsonl data/problems.jsonl"),
        (Path("data"), "data: is a folder"),
    ],
)
def test_what_cannot_be_had_is_refused(project: Path, path: Path, message: str) -> None:
    for ask in (lambda: source_md5(project, path), lambda: materialise(project, space(project), [path])):
        with pytest.raises(UserError, match=message):
            ask()


def test_a_broken_pointer_is_named(project: Path) -> None:
    (project / "data" / "mine.jsonl.dvc").write_text("outs: [\n")
    with pytest.raises(UserError, match=r"mine.jsonl.dvc: is not a file of DVC's"):
        source_md5(project, Path("data/mine.jsonl"))


@in_git_or_not
def test_a_prepared_folder_is_published_versioned_and_pushed(project: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    (built / "more").mkdir(parents=True)
    (built / "train.jsonl").write_text('{"id": "é"}\n')
    (built / "more" / "eval.jsonl").write_text("")
    md5 = version_folder(project, space(project), built, "prepared")
    published = project / "data" / "prepared"
    assert md5 == folder_md5(built) == folder_md5(published)
    assert YAML(typ="safe").load((project / "data" / "prepared.dvc").read_text())["outs"][0]["md5"] == md5
    assert stored(project, md5, "remote").is_file()
    assert stored(project, md5_of(built / "train.jsonl"), "remote").read_bytes() == b'{"id": "\xc3\xa9"}\n'

    shutil.rmtree(space(project) / "dvc" / "remote")
    inode = published.stat().st_ino
    start = time.perf_counter()
    assert version_folder(project, space(project), built, "prepared") == md5
    assert time.perf_counter() - start < 1
    assert published.stat().st_ino == inode  # nothing was moved
    assert stored(project, md5, "remote").is_file()

    (built / "train.jsonl").write_text("{}\n")
    (built / "more" / "eval.jsonl").unlink()
    assert version_folder(project, space(project), built, "prepared") == folder_md5(built) != md5
    assert sorted(file.name for file in published.rglob("*") if file.is_file()) == ["train.jsonl"]
    assert {file.name for file in (project / "data").iterdir()} <= {
        ".gitignore", "dvc.yaml", "make.py", "prepared", "prepared.dvc"
    }  # fmt: skip


def test_another_workspace_and_another_default_remote_are_used(tmp_path: Path) -> None:
    project, workspace, built = tmp_path / "project", tmp_path / "elsewhere", tmp_path / "built"
    project.mkdir()
    built.mkdir()
    (built / "train.jsonl").write_text("{}\n")
    md5 = version_folder(project, workspace, built, "prepared")
    assert (workspace / "dvc" / "remote" / "files" / "md5" / md5[:2] / md5[2:]).is_file()
    assert not space(project).exists()

    dvc = [sys.executable, "-m", "dvc", "--cd", str(project), "remote", "add", "-q", "--default"]
    subprocess.run([*dvc, "own", str(tmp_path / "own")], check=True)
    (built / "train.jsonl").write_text("{} \n")
    md5 = version_folder(project, workspace, built, "prepared")
    assert (tmp_path / "own" / "files" / "md5" / md5[:2] / md5[2:]).is_file()


def test_a_held_lock_is_waited_for(project: Path, tmp_path: Path) -> None:
    from dvc.repo import Repo

    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "train.jsonl").write_text("{}\n")
    version_folder(project, space(project), tmp_path / "built", "prepared")
    held = 4.0  # longer than DVC waits by itself
    with Repo(str(project)) as repo:
        repo.lock.lock()
        threading.Timer(held, repo.lock.unlock).start()
        start = time.perf_counter()
        version_folder(project, space(project), tmp_path / "built", "prepared")
        assert time.perf_counter() - start > held - 1


def test_a_remote_that_is_wrongly_set_up_is_the_users_to_mend(project: Path, tmp_path: Path) -> None:
    (project / "mine.jsonl").write_text("{}\n")
    materialise(project, space(project), [Path("mine.jsonl")])
    config = project / ".dvc" / "config"
    config.write_text(config.read_text().replace("remote = local", "remote = none"))
    (project / "mine.jsonl").write_text("{} \n")
    with pytest.raises(UserError, match=r"\.dvc/config: .*none"):
        materialise(project, space(project), [Path("mine.jsonl")])
    config.write_text(config.read_text() + "nonsense\n")
    (project / "mine.jsonl").write_text("{}  \n")
    with pytest.raises(UserError, match=r"\.dvc/config: "):
        materialise(project, space(project), [Path("mine.jsonl")])
