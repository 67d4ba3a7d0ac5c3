"""docs/performance.md and docs/performance-full.md, written from benchmarks/results/.

Read in this order: `results` (what was measured), `goals` (what was promised), `tables`, `tables_more` and `plots` (the full
page), `short` (the page of one screen), `document` (the templates filled).
"""
