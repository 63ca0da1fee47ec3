"""A run as one self-contained HTML page: verdict, climb, curves, samples, lineage."""

from tasks.reporting.page import render
from tasks.reporting.report import Report
from tasks.reporting.samples import changed_items

__all__ = ["Report", "changed_items", "render"]
