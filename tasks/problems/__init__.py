"""Problems: the one row type, the readers, the splits and the prepared dataset."""

from tasks.problems.prepared import prepare, read_split, read_summary
from tasks.problems.problem import Message, Problem
from tasks.problems.readers import READERS, Check, placed_problems, read_source
from tasks.problems.splits import SPLITS, SplitName, fingerprint, normalise, split_of

__all__ = [
    "READERS",
    "SPLITS",
    "Check",
    "Message",
    "Problem",
    "SplitName",
    "fingerprint",
    "normalise",
    "placed_problems",
    "prepare",
    "read_source",
    "read_split",
    "read_summary",
    "split_of",
]
