"""Prefect's temporary server, started while this process still imports."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """Have Prefect's temporary server start during the block; at its end the server is up.

    Prefect would start the same server when the flow begins, and wait for it for four seconds on two cores. Where
    a server is named (`PREFECT_API_URL`, or a profile), nothing is started.
    """
    from prefect.settings import get_current_settings

    if get_current_settings().api.url:
        yield
        return
    from prefect.server.api.server import SubprocessASGIServer

    with ThreadPoolExecutor(1) as executor:
        started = executor.submit(SubprocessASGIServer().start)
        yield
        started.result()
