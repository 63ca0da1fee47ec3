"""What every part of a report has in common."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    """A frozen part of the report that takes no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _finite(value: Any) -> Any:
    """A logged value that is no finite number, as a KL of NaN, is a gap in its curve."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Value = Annotated[float | None, BeforeValidator(_finite)]
