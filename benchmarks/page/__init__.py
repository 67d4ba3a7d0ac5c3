"""docs/performance.md from the results: goals, tables, plots.

One rule: every figure on the page is read from a file of results; none is typed.

Read: `results` (what was measured), `goals`, `tables`, `tables_more`, `plots`, `document` (all of it in the template).
"""
