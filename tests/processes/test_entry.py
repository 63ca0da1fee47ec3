import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from tasks.errors import UserError
from tasks.processes.entry import read_spec

PROGRAM = """
import os, sys, time
from pathlib import Path
from pydantic import BaseModel
from tasks.errors import UserError
from tasks.processes import entry

class Spec(BaseModel):
    do: str

def work(spec):
    if spec.do == "fail":
        raise UserError("key `do`: do not fail")
    if spec.do == "crash":
        raise KeyError("a bug")
    if spec.do == "wait":
        Path(sys.argv[1]).with_suffix(".pid").write_text(str(os.getpid()))
        time.sleep(120)
    print("done", os.environ["TQDM_DISABLE"])

entry.run(Spec, work)
"""


class Spec(BaseModel):
    do: str
    times: int = 1


def start(folder: Path, do: str) -> "subprocess.CompletedProcess[str]":
    spec = folder / "spec.json"
    spec.write_text(json.dumps({"do": do}))
    return subprocess.run([sys.executable, "-c", PROGRAM, str(spec)], capture_output=True, text=True, timeout=60)


def test_work_done_ends_with_zero(tmp_path: Path) -> None:
    ended = start(tmp_path, "it")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 1\n", "")


def test_a_users_mistake_is_its_message_alone(tmp_path: Path) -> None:
    ended = start(tmp_path, "fail")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "key `do`: do not fail\n")


def test_a_bug_is_a_traceback(tmp_path: Path) -> None:
    ended = start(tmp_path, "crash")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "a bug" in ended.stderr


def test_the_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"do": "wait"}))
    pid_file = tmp_path / "spec.pid"
    parent = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(sys.argv[1:], start_new_session=True)\n"
        f"from pathlib import Path\nwhile not Path({str(pid_file)!r}).exists(): time.sleep(0.05)\n"
    )
    subprocess.run([sys.executable, "-c", parent, sys.executable, "-c", PROGRAM, str(spec)], check=True, timeout=60)
    child = Path("/proc") / pid_file.read_text()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(child)


def alive(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"times": "x"}', ["do: Field required", "times: Input should be a valid integer"]),
        ("{", ["the file: Invalid JSON"]),
    ],
)
def test_a_wrong_spec_is_named_with_every_wrong_key(tmp_path: Path, content: str, says: list[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_spec(Spec, [str(path)])
    assert all(words in str(raised.value) for words in [str(path), *says])


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["/no/such/spec.json"]])
def test_a_missing_spec_is_a_users_mistake(arguments: list[str]) -> None:
    with pytest.raises(UserError):
        read_spec(Spec, arguments)
