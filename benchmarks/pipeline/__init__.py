"""The pipeline on both of its engines, compared with DuckDB's SQL written by hand."""
