"""The entry of a stage process: `python -m MODULE SPEC`, where SPEC is a JSON file with everything it needs."""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from tasks.errors import UserError

SpecType = TypeVar("SpecType", bound=BaseModel)

ENVIRONMENT = {
    "DO_NOT_TRACK": "true",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # A thread that waits for another yields its core; spinning instead, as is the default, made a process ten times
    # slower on a machine that was busy with something else, and none faster on one that was not.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""The libraries read these when imported, so `run` comes before any heavy import. A value already set stays."""


def run(spec_type: type[SpecType], work: Callable[[SpecType], None]) -> NoReturn:
    """Read the spec named on the command line, do the work and end the process.

    Exit code 0 when the work is done, 2 after a user's mistake (its message alone on stderr), 1 with a traceback
    after anything else. The process ends, with all processes of its own group, as soon as its parent is gone.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Nothing that a user could mend: the libraries' use of what they deprecate in each other, a default for GPUs alone.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true", category=UserWarning)
    end_with_parent()
    try:
        work(read_spec(spec_type, sys.argv[1:]))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except SystemExit as error:
        # Code that ends the process is not work that is done, whatever exit code it has in mind.
        raise RuntimeError(f"something ended the process before its work was done (exit {error.code})") from error
    sys.exit(0)


def read_spec(spec_type: type[SpecType], arguments: list[str]) -> SpecType:
    """The spec in the one file that the arguments name; raises UserError naming the file and each wrong key."""
    if len(arguments) != 1:
        raise UserError(f"expected one argument, the path of a JSON file with a {spec_type.__name__}: {arguments}")
    path = Path(arguments[0])
    try:
        return spec_type.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give the path of a {spec_type.__name__}"
        ) from error
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()]
        raise UserError(f"{path} is not a valid {spec_type.__name__}: " + "; ".join(reasons)) from error


def make_deterministic() -> None:
    """Have torch choose deterministic algorithms where there are any, and warn where there are none.

    Unlike `full_determinism` of transformers' trainer this does not make CUDA launches blocking, so it costs little.
    """
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling fresh memory only serves to expose programs that read it unwritten, and takes time at every step.
    torch.utils.deterministic.fill_uninitialized_memory = False


def end_with_parent() -> None:
    """End this process, with all processes of its own group, as soon as its parent is gone."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
