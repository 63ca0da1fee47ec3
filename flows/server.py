"""Prefect's server for the length of one command: `python -m flows.server PORT`.

Prefect starts a temporary server by itself where none is named, but late, and in the process group of the command: a
Ctrl-C ends it before the flow has told it so, and a killed command leaves it behind. This one is started first, stands
in a group of its own, and ends with its parent.
"""

import atexit
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

TIMEOUT = 120.0


def start(workspace: Path) -> Callable[[], None]:
    """Start the server and name it in `PREFECT_API_URL`; call before Prefect is imported.

    Nothing is started where the user has named a server, by `PREFECT_API_URL` or by a `PREFECT_HOME` with its profiles.

    Returns:
        Waits until the server answers. Raises RuntimeError when it does not.
    """
    own_home = os.environ["PREFECT_HOME"] == str(workspace / "prefect")
    if "PREFECT_API_URL" in os.environ or not own_home:
        return lambda: None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = workspace / "prefect" / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(port)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    # Registered before Prefect's own handlers, so it runs after them: they still have events and logs to send.
    atexit.register(process.terminate)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"

    def wait() -> None:
        deadline = time.monotonic() + TIMEOUT
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health"):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError(f"Prefect's server does not answer; what it said is in {log}")

    return wait


def main() -> None:
    """Serve Prefect's API and UI, without its background services, until told to stop or left alone."""
    from tasks.processes.entry import end_with_parent

    end_with_parent()
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.run(create_app(webserver_only=True, final=True), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
