"""The journal's columns as Spark reads them."""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812 - every Spark program calls it T

from ...journal.schema import COLUMNS

_TYPES: dict[str, T.DataType] = {"int64": T.LongType(), "int32": T.IntegerType(), "dictionary": T.StringType()}

EVENTS: T.StructType = T.StructType(
    [T.StructField(column.name, _TYPES[column.type], not column.required) for column in COLUMNS]
)
"""Grain: one row per event. Columns that an older file lacks are null."""
