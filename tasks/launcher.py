"""Stage processes: started, listened to, and ended with everything that they started."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Protocol

from tasks.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
"""Where stages run: the folder that this package stands in. `python -m` looks for modules in the current folder first,
and the user's may have a `tasks` or a `trl.py` of its own."""
TICK, GRACE = 0.5, 5.0
"""Seconds between two ticks, and between SIGTERM and SIGKILL."""
TAIL = 20
"""Lines of a stage's output that are repeated in the message of its failure."""


class StageFailed(RuntimeError):  # noqa: N818
    """A stage process that did not do its work; the message says how it ended and what it said last."""


class Launcher(Protocol):
    """Anything that runs a stage to its end: a process here, as `launch` does, or torchrun, or a job on a cluster."""

    def __call__(
        self,
        module: str,
        spec: Path,
        *,
        log: Path,
        on_line: Callable[[str], None],
        on_tick: Callable[[], None],
        timeout: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Run `python -m MODULE SPEC`; the contract is that of `launch`."""


def launch(
    module: str,
    spec: Path,
    *,
    log: Path,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run `python -m MODULE SPEC` in a session of its own and return when it has succeeded.

    It runs in the folder `ROOT`, so all paths in the spec are absolute. Each line of its stdout and stderr goes to
    `on_line` and to the file `log`; `on_tick` is called about twice a second and once at the end. Both are called in
    the caller's thread. `env` adds to the environment.

    No process of the stage's group outlives the call, whatever ends it: success, the `timeout` in seconds, or an
    exception in the caller such as KeyboardInterrupt. They get SIGTERM and, a few seconds later, SIGKILL.

    Raises UserError with the stage's message when it exits with code 2 (a user's mistake), and StageFailed when it
    fails in any other way or runs out of time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8") as log_file,
        subprocess.Popen(
            [sys.executable, "-m", module, str(spec.absolute())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
        ) as process,
    ):
        try:
            output = _Output(process, log_file, on_line)
            deadline = time.monotonic() + timeout
            next_tick = 0.0
            while process.poll() is None and (now := time.monotonic()) < deadline:
                if now >= next_tick:
                    on_tick()
                    next_tick = now + TICK
                output.forward(min(next_tick, deadline) - now)
            timed_out = process.returncode is None
        finally:
            _end_group(process)
        output.finish()
        on_tick()
    if timed_out:
        raise StageFailed(f"{module} ran longer than its timeout of {timeout:g} s and was stopped{output.tail(log)}")
    if process.returncode == 2:
        raise UserError("\n".join(output.last_error) or f"{module} exited with code 2{output.tail(log)}")
    if process.returncode != 0:
        raise StageFailed(f"{module} {_how_it_ended(process.returncode)}{output.tail(log)}")


class _Output:
    """The lines of a process, in the order of their writing, both streams as one.

    Never waits for the end of a stream: a grandchild that keeps it open may live as long as it likes.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[str], on_line: Callable[[str], None]) -> None:
        self._log, self._on_line = log, on_line
        self._lines: deque[str] = deque(maxlen=TAIL)
        self._unfinished = {"stdout": b"", "stderr": b""}
        self._streams = selectors.DefaultSelector()
        self.last_error: list[str] = []
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert stream is not None  # noqa: S101  # both are pipes
            os.set_blocking(stream.fileno(), False)
            self._streams.register(stream, selectors.EVENT_READ, name)

    def forward(self, wait: float) -> bool:
        """Pass on what is there, waiting up to `wait` seconds for something; False if there was nothing."""
        if not self._streams.get_map():
            # Both streams are at their end, so the process is about to be: look again soon.
            time.sleep(min(wait, 0.02))
            return False
        ready = sorted(self._streams.select(wait), key=lambda event: event[0].data, reverse=True)
        for key, _ in ready:
            chunk = os.read(key.fd, 65536)
            if not chunk:
                self._streams.unregister(key.fileobj)
            *lines, self._unfinished[key.data] = (self._unfinished[key.data] + chunk).split(b"\n")
            for line in lines:
                self._pass_on(key.data, line)
        self._log.flush()
        return bool(ready)

    def finish(self) -> None:
        """Pass on the rest, lines without an end included."""
        while self.forward(0):
            pass
        self._streams.close()
        for name, line in self._unfinished.items():
            if line:
                self._pass_on(name, line)
        self._log.flush()

    def tail(self, log: Path) -> str:
        """What a failure's message says of the output."""
        said = "\n".join(f"  {line}" for line in self._lines)
        return f"; its output is in {log}" + (f" and ends:\n{said}" if said else "")

    def _pass_on(self, stream: str, raw: bytes) -> None:
        line = raw.decode("utf-8", errors="replace").rstrip("\r")
        self._lines.append(line)
        self._log.write(line + "\n")
        if stream == "stderr":
            self.last_error.append(line)
        else:
            self.last_error.clear()
        self._on_line(line)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"failed with exit code {code}"
    name = signal.Signals(-code).name
    hint = " (often the system's answer to too little memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        deadline = time.monotonic() + GRACE
        running = _signal_group(process, signal.SIGTERM)
        while running and time.monotonic() < deadline:
            time.sleep(0.05)
            process.poll()
            running = _signal_group(process, 0)
    finally:
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> bool:
    """Signal all processes of the group, of which the process is the leader; False if none is left."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
