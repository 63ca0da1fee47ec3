"""params.yaml: its schema, recipes and overrides."""

from tasks.config.load import Configuration, find_project, load, nearest
from tasks.config.schema import Params

__all__ = ["Configuration", "Params", "find_project", "load", "nearest"]
