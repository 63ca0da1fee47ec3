"""Paired tests and intervals: pure functions of numbers, with scipy's mathematics."""

from tasks.stats.paired import PairedComparison, compare
from tasks.stats.single import mean_interval

__all__ = ["PairedComparison", "compare", "mean_interval"]
