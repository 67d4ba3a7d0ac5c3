"""Journals in: each file checked before Spark sees it, then events as a DataFrame."""
