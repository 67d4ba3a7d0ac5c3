"""Benchmarks as documents: `python -m benchmarks run` measures, `... document` writes
docs/performance.md.

One rule: a figure in the document comes from a file below `results/`, and that file
says what it was measured on.
"""
