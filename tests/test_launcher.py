"""Stage processes as they really behave: each test starts a small Python program through the launcher."""

import os
import signal
import time
from pathlib import Path

import pytest

from tasks.errors import UserError
from tasks.launcher import StageFailed, launch


class Stage:
    """A program on the module path, and what the launcher told about it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "logs" / "stage.log"
        self.spec = folder / "spec.json"
        self.lines: list[str] = []
        self.ticks = 0

    def run(self, program: str, timeout: float = 30, on_line=None, on_tick=None) -> None:
        (self.folder / "program.py").write_text("import os, signal, subprocess, sys, time\n" + program)
        launch(
            "program",
            self.spec,
            log=self.log,
            on_line=on_line or self.lines.append,
            on_tick=on_tick or self.tick,
            timeout=timeout,
            env={"PYTHONPATH": str(self.folder)},
        )

    def tick(self) -> None:
        self.ticks += 1


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


SLEEPER = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_lines_arrive_in_order_while_the_process_runs_and_are_in_the_log(stage):
    arrivals = []
    stage.run(
        "print(sys.argv[1])\n"
        "for n in range(3):\n"
        "    print('out', n); time.sleep(0.3)\n"
        "    print('err', n, file=sys.stderr); time.sleep(0.3)\n"
        "sys.stdout.write('no end')",
        on_line=lambda line: arrivals.append((time.monotonic(), line)),
    )
    expected = [str(stage.folder / "spec.json"), "out 0", "err 0", "out 1", "err 1", "out 2", "err 2", "no end"]
    assert [line for _, line in arrivals] == expected
    assert stage.log.read_text().splitlines() == expected
    assert arrivals[-1][0] - arrivals[0][0] > 1.2
    assert 3 <= stage.ticks <= 8


def test_ticks_after_the_last_output(stage):
    order = []
    stage.run("print('done')", on_line=order.append, on_tick=lambda: order.append("tick"))
    assert order[-2:] == ["done", "tick"]


def test_the_environment_is_added_to(stage, monkeypatch):
    monkeypatch.setenv("KEPT_FROM_PARENT", "kept")
    stage.run("print(os.environ['KEPT_FROM_PARENT'], os.environ['PYTHONPATH'])")
    assert stage.lines == [f"kept {stage.folder}"]


def test_what_lies_in_the_users_folder_is_not_imported(stage, tmp_path, monkeypatch):
    users = tmp_path / "users"
    (users / "tasks").mkdir(parents=True)
    for stray in ("tasks/__init__.py", "pydantic.py"):
        (users / stray).write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(users)
    stage.run("import tasks.training.spec, pydantic\nprint(tasks.__file__, os.getcwd())")
    root = Path(launch.__code__.co_filename).parents[1]
    assert stage.lines == [f"{root / 'tasks' / '__init__.py'} {root}"]


def test_a_relative_spec_is_found_from_the_folder_of_the_caller(stage, monkeypatch):
    monkeypatch.chdir(stage.folder)
    stage.spec = Path("spec.json")
    stage.run("print(sys.argv[1])")
    assert stage.lines == [str(stage.folder / "spec.json")]


def test_a_failure_tells_code_log_and_last_lines(stage):
    with pytest.raises(StageFailed) as failure:
        stage.run("for n in range(40): print('line', n)\nraise RuntimeError('out of cheese')")
    message = str(failure.value)
    assert "program failed with exit code 1" in message
    assert str(stage.log) in message
    assert message.endswith("RuntimeError: out of cheese")
    assert "line 39" in message
    assert "line 10\n" not in message


def test_exit_code_2_is_the_users_mistake_in_the_stages_own_words(stage):
    with pytest.raises(UserError) as mistake:
        stage.run("print('loading')\nprint('sft.lora.r: not a number\\n  say 8', file=sys.stderr); sys.exit(2)")
    assert str(mistake.value) == "sft.lora.r: not a number\n  say 8"


def test_a_killed_process_is_named_as_such(stage):
    with pytest.raises(StageFailed, match="program was killed by SIGKILL"):
        stage.run("os.kill(os.getpid(), signal.SIGKILL)")


def test_a_timeout_ends_the_whole_tree(stage):
    started = time.monotonic()
    with pytest.raises(StageFailed, match="timeout of 1 s"):
        stage.run(f"child = {SLEEPER}\nprint(child.pid); print(os.getpid()); time.sleep(300)", timeout=1)
    assert time.monotonic() - started < 5
    assert len(stage.lines) == 2
    assert not any(is_alive(int(pid)) for pid in stage.lines)


def test_a_process_that_ignores_sigterm_is_killed(stage, monkeypatch):
    monkeypatch.setattr("tasks.launcher.GRACE", 0.5)
    with pytest.raises(StageFailed, match="timeout"):
        stage.run("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid()); time.sleep(300)", timeout=1)
    assert not is_alive(int(stage.lines[0]))


@pytest.mark.parametrize("success", [True, False])
def test_a_grandchild_that_holds_the_output_open_blocks_nothing_and_is_ended(stage, success):
    started = time.monotonic()
    program = f"child = {SLEEPER}\nprint(child.pid); sys.exit({0 if success else 3})"
    if success:
        stage.run(program)
    else:
        with pytest.raises(StageFailed, match="exit code 3"):
            stage.run(program)
    assert time.monotonic() - started < 5
    assert not is_alive(int(stage.lines[0]))


def test_an_interrupt_of_the_caller_ends_the_tree_and_goes_on(stage):
    def interrupt(line: str) -> None:
        stage.lines.append(line)
        if len(stage.lines) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        stage.run(f"child = {SLEEPER}\nprint(child.pid); print(os.getpid()); time.sleep(300)", on_line=interrupt)
    assert not any(is_alive(int(pid)) for pid in stage.lines)


def test_an_error_in_a_callback_ends_the_tree_and_is_not_hidden(stage):
    def fail() -> None:
        if stage.lines:
            raise OSError("tracking server is down")

    with pytest.raises(OSError, match="tracking server is down"):
        stage.run("print(os.getpid())\ntime.sleep(300)", on_tick=fail)
    assert not is_alive(int(stage.lines[0]))


def test_output_that_is_not_text_does_not_stop_the_stage(stage):
    stage.run("os.write(1, b'caf\\xe9\\r\\n')")
    assert stage.lines == ["caf\ufffd"]


def test_much_output_is_not_lost(stage):
    stage.run("for n in range(20000): print('x' * 50, n)")
    assert len(stage.lines) == 20000
    assert stage.lines[-1].endswith(" 19999")
