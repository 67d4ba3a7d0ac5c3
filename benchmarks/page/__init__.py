"""docs/performance.md and docs/performance-full.md from the results: what a user pays, goals, tables, plots.

One rule: every figure on the pages is read from a file of results; none is typed.

Read: `results` (what was measured), `words`, `readings`, `goals`, `tables`, `tables_more`, `plots`, `short`, `document`
(templates filled).
"""
