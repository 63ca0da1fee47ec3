"""What the YAML files of this folder call: the items of a source, and the verdict on an answer."""

from pathlib import Path
from typing import Any

from tasks.evaluation import items

PREPARED = Path(__file__).resolve().parents[2] / "data" / "prepared"

process_results = items.process_results


def dataset(source: str, prepared: str | None = None, **_: Any) -> Any:
    """The eval problems of `source` in the prepared folder: lm-eval's metadata `prepared`, else data/prepared."""
    return items.dataset(Path(prepared) if prepared else PREPARED, source)
