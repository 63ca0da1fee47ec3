"""The gate: may a candidate replace what is in production? Pure functions of scores and rules."""

from tasks.gating.control import Control, compare_control
from tasks.gating.files import compare_files, read_records, read_scores
from tasks.gating.prose import verdict_prose
from tasks.gating.rules import CHAMPION, Records, Scores, decide, nothing
from tasks.gating.verdict import Comparison, Decision, Outcome, Role, Verdict

__all__ = [
    "CHAMPION",
    "Comparison",
    "Control",
    "Decision",
    "Outcome",
    "Records",
    "Role",
    "Scores",
    "Verdict",
    "compare_control",
    "compare_files",
    "decide",
    "nothing",
    "read_records",
    "read_scores",
    "verdict_prose",
]
