"""Measuring models with lm-eval: all models of a comparison on the same items, in one process, item by item."""
