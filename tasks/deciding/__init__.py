"""What follows from a probe: whether GRPO is worth its cost, whether DPO goes first, whether its model is kept.

Pure functions of figures. Apart from the probe itself, so that a change of a rule samples and trains nothing again.
"""

from tasks.deciding.decision import decide
from tasks.deciding.preference import Kept, Wanted, kept, wanted

__all__ = ["Kept", "Wanted", "decide", "kept", "wanted"]
