"""The pipeline compared with single-machine engines, and how its time and memory grow.

One rule: all engines read the same files and must give the same answers before their times are compared.

Read: `generate` (the journals), `rivals` (DuckDB and Polars), `worker` (one engine in a process of its own), `run` (the
rounds), `start` (a small journal), `checking` (what the driver reads before it begins), `document` (the page).
"""
