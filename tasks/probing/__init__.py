"""The probe: what can a model do before it is trained further, and is GRPO worth its cost?"""

from tasks.probing.attempts import read, write
from tasks.probing.findings import Attempt, Decision, Measures, ProbedPrompt
from tasks.probing.measures import measure
from tasks.probing.pairs import given_pairs, make_pairs, read_pairs, write_pairs
from tasks.probing.spec import group_size

__all__ = [
    "Attempt",
    "Decision",
    "Measures",
    "ProbedPrompt",
    "given_pairs",
    "group_size",
    "make_pairs",
    "measure",
    "read",
    "read_pairs",
    "write",
    "write_pairs",
]
