"""How a model is handed to `mlflow.pyfunc.log_model`."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

REQUIREMENTS = ("jinja2", "mlflow", "pydantic", "torch", "transformers")
"""What the model code needs where it is served."""


def model_kwargs(model_dir: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """Arguments of `mlflow.pyfunc.log_model` that make a self-contained chat model of a transformers folder.

    The folder is copied to `artifacts/` under its own name, from where transformers can load it too. Requirements are
    the installed versions, without their local part (`+cpu`), so that MLflow neither runs pip nor loads the model.
    """
    return {
        "python_model": str(Path(__file__).with_name("chat.py")),
        "artifacts": {"model": str(model_dir)},
        "model_config": {"trust_remote_code": trust_remote_code},
        "pip_requirements": [f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS],
    }
