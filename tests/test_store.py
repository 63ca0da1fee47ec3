"""Stage outputs are whole or absent, found again by their key, and never half trusted."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from tasks import store
from tasks.store import Stage

STAGE = Stage("sft", {"params": {"learning_rate": 0.1}, "parents": {"prepare": "abc"}})


def build(folder: Path) -> dict[str, str]:
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("w")
    (folder / "metrics.json").write_text("{}")
    return {"mlflow_run_id": "r1"}


def never(folder: Path) -> dict[str, str]:
    raise AssertionError("built again")


def test_an_output_is_made_once_and_then_found(tmp_path: Path) -> None:
    made = store.obtain(tmp_path, STAGE, build)
    found = store.obtain(tmp_path, STAGE, never)
    assert (made.cached, found.cached) == (False, True)
    assert found.manifest == made.manifest
    assert found.manifest.facts == {"mlflow_run_id": "r1"}
    assert set(found.manifest.files) == {"model/weights", "metrics.json"}


def test_the_key_rests_on_the_inputs_and_not_on_their_order() -> None:
    same = Stage("sft", {"parents": {"prepare": "abc"}, "params": {"learning_rate": 0.1}})
    other = Stage("sft", {"parents": {"prepare": "abc"}, "params": {"learning_rate": 0.2}})
    assert STAGE.key == same.key
    assert len({STAGE.key, other.key, Stage("grpo", STAGE.inputs).key}) == 3


def test_a_failed_build_publishes_nothing_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, str]:
        (folder / "half").write_text("x")
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError):
        store.obtain(tmp_path, STAGE, fail)
    assert store.read(tmp_path, STAGE) is None
    made = store.obtain(tmp_path, STAGE, build)
    assert not (made.folder / "half").exists()


@pytest.mark.parametrize("damage", ["changed", "removed"])
def test_a_damaged_output_is_recognised_and_made_again(tmp_path: Path, damage: str) -> None:
    weights = store.obtain(tmp_path, STAGE, build).folder / "model" / "weights"
    if damage == "changed":
        weights.write_text("v")
    else:
        weights.unlink()
    assert store.read(tmp_path, STAGE) is None
    assert store.obtain(tmp_path, STAGE, build).cached is False
    assert store.explain(tmp_path, STAGE) == "up to date"


def test_an_output_with_a_file_missing_is_shown_as_damaged(tmp_path: Path) -> None:
    (store.obtain(tmp_path, STAGE, build).folder / "model" / "weights").unlink()
    assert store.explain(tmp_path, STAGE) == "damaged: model/weights"


def test_why_a_stage_would_run(tmp_path: Path) -> None:
    assert store.explain(tmp_path, STAGE) == "never run"
    store.obtain(tmp_path, STAGE, build)
    changed = Stage("sft", {"params": {"learning_rate": 0.2, "beta": 1}, "parents": {"prepare": "def"}})
    said = store.explain(tmp_path, changed)
    assert said == "changed: params.learning_rate 0.1 -> 0.2; params.beta unset -> 1; parents.prepare"


def test_the_model_digest_is_of_the_model_alone(tmp_path: Path) -> None:
    def other_metrics(folder: Path) -> dict[str, str]:
        facts = build(folder)
        (folder / "metrics.json").write_text('{"seconds": 1}')
        return facts

    first = store.obtain(tmp_path / "a", STAGE, build)
    second = store.obtain(tmp_path / "b", STAGE, other_metrics)
    assert first.manifest.model_digest() == second.manifest.model_digest()
    assert first.manifest.files != second.manifest.files


def build_slowly(folder: Path) -> dict[str, str]:
    time.sleep(1)
    return build(folder)


def obtain_in_process(stages: Path, queue: "multiprocessing.Queue[bool]") -> None:
    queue.put(store.obtain(stages, STAGE, build_slowly).cached)


def test_two_processes_that_want_the_same_stage_build_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bool] = context.Queue()
    workers = [context.Process(target=obtain_in_process, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert sorted(queue.get(timeout=30) for _ in workers) == [False, True]
    for worker in workers:
        worker.join()


def hang(folder: Path) -> dict[str, str]:
    (folder / "half").write_text("x")
    time.sleep(60)
    return {}


def test_a_killed_builder_leaves_no_lock_behind(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=store.obtain, args=(tmp_path, STAGE, hang))
    worker.start()
    half = Path(f"{store.output_folder(tmp_path, STAGE)}.partial") / "half"
    while not half.exists():
        time.sleep(0.05)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert store.obtain(tmp_path, STAGE, build).cached is False


def test_the_code_digest_sees_the_code_and_not_the_place(tmp_path: Path) -> None:
    for place in ("a", "b"):
        package = tmp_path / place / "package"
        package.mkdir(parents=True)
        (package / "code.py").write_text("x = 1")
        (package / "notes.md").write_text(place)
    first, second = (store.code_digest(tmp_path / place / "package") for place in ("a", "b"))
    assert first == second
    (tmp_path / "b" / "package" / "code.py").write_text("x = 2")
    assert store.code_digest(tmp_path / "b" / "package") != first
