"""The journal's columns as the pipeline reads them."""

from __future__ import annotations

import pyarrow as pa

from ...journal.schema import COLUMNS

_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "dictionary": pa.string()}

EVENTS: pa.Schema = pa.schema(
    [pa.field(column.name, _TYPES[column.type], nullable=not column.required) for column in COLUMNS]
)
"""Grain: one row per event. Columns that an older file lacks are null."""
