"""PySpark's columns and functions as SQL of DuckDB, as far as the pipeline uses them.

The rule of this module: *the answer is Spark's, or an error*. Where the two differ (the
type of a sum, the place of nulls, the index of a lambda), this module gives Spark's
answer. A function that is missing is an AttributeError, and no guess.
`tests/pipeline/test_engines.py` asks both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from itertools import count as counter
from typing import Any, ClassVar

OVER = "\0"
"""Marks the place behind an aggregate where OVER goes. It is removed before the SQL is
used.
"""

_TYPES = {"long": "BIGINT", "int": "INTEGER", "string": "VARCHAR", "binary": "BLOB"}
_TIMES = {
    "dd/MMM/yyyy:HH:mm:ss.SSS": "%d/%b/%Y:%H:%M:%S.%g",
    "dd/MMM/yyyy:HH:mm:ss Z": "%d/%b/%Y:%H:%M:%S %z",
}
"""Java's patterns of instants, as DuckDB spells them."""

_WHOLE = r"\A[\x01-\x20\x7f]*([+-]?[0-9]+)[\x01-\x20\x7f]*\z"
"""What Spark takes for a whole number. DuckDB takes '1e3', '0x1f', '1_000' and '1.' for
one, too, and '1' before a control character for none.
"""

_FUNCTIONS = {
    "abs": "abs({0})",
    "array_max": "list_max({0})",
    "array_min": "list_min({0})",
    "count": f"count({{0}}){OVER}",
    "date_from_unix_date": "(DATE '1970-01-01' + CAST({0} AS INTEGER))",
    "desc": "{0} DESC NULLS LAST",
    "explode": "unnest({0})",
    "floor": "CAST(floor({0}) AS BIGINT)",
    "lag": f"lag({{0}}){OVER}",
    "lead": f"lead({{0}}){OVER}",
    "max": f"max({{0}}){OVER}",
    "max_by": f"arg_max_null({{0}}, {{1}}){OVER}",
    "min": f"min({{0}}){OVER}",
    "nullif": "nullif({0}, {1})",
    "shiftright": "({0} >> {1})",
    "sum": f"CAST(sum({{0}}){OVER} AS BIGINT)",
    "trim": "trim({0}, ' ')",
    "try_multiply": "TRY({0} * {1})",
    "try_sum": f"TRY_CAST(sum({{0}}){OVER} AS BIGINT)",
    "unix_micros": "epoch_us({0})",
}
"""Functions of columns alone, by Spark's names."""

_METHODS = {
    "between": "{0} BETWEEN {1} AND {2}",
    "bitwiseOR": "{0} | {1}",
    "isNotNull": "{0} IS NOT NULL",
    "isNull": "{0} IS NULL",
    "rlike": "regexp_matches({0}, {1})",
}
"""Methods of columns: the column is `{0}`."""

_JOINED = {
    "coalesce": ("coalesce(", ", "),
    "concat": ("(", " || "),
    "greatest": ("greatest(", ", "),
    "least": ("least(", ", "),
}
"""Functions of any number of columns: what stands before them and between."""

_numbers = counter()


def name(text: str) -> str:
    """*text* as the name of a column, or of a member of a struct (`match.conn`)."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in text.split("."))


def literal(value: Any) -> str:
    """*value* as SQL."""
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int | float):
        return f"({value})" if value < 0 else str(value)
    raise TypeError(f"no literal of SQL: {value!r}")


def text_of(value: Any) -> str:
    """A column or a literal as SQL."""
    return value.sql if isinstance(value, Column) else literal(value)


def column_of(value: Any) -> Column:
    """The column itself, or the one that a string names."""
    return value if isinstance(value, Column) else col(value)


def sqls(columns: Iterable[Any]) -> list[str]:
    """Columns as SQL; strings name columns, numbers are literals."""
    return [literal(each) if isinstance(each, int) else column_of(each).sql for each in columns]


Operator = Callable[["Column", Any], "Column"]


def _operator(sql: str) -> Callable[[Column, Any], Column]:
    """*sql* of two columns, or of a column and a literal, `{0}` and `{1}`."""
    return lambda self, other: Column(f"({sql.format(self.sql, text_of(other))})")


class Column:
    """An expression. *label*: what it is called in a frame; *members*: of a struct, or
    of what is unnested.
    """

    __slots__ = ("_cases", "label", "members", "sql")

    def __init__(
        self, sql: str, label: str = "", members: tuple[str, ...] = (), cases: str = ""
    ) -> None:
        self.sql: str = sql
        self.label: str = label
        self.members: tuple[str, ...] = members
        self._cases = cases

    def __bool__(self) -> bool:
        raise TypeError("a column has no truth: & | ~ instead of and, or, not")

    def __hash__(self) -> int:
        raise TypeError("a column has no hash: two of one text are not the same")

    __eq__: ClassVar[Operator] = _operator("{0} = {1}")  # type: ignore[assignment]
    __ne__: ClassVar[Operator] = _operator("{0} <> {1}")  # type: ignore[assignment]
    __lt__: ClassVar[Operator] = _operator("{0} < {1}")
    __le__: ClassVar[Operator] = _operator("{0} <= {1}")
    __gt__: ClassVar[Operator] = _operator("{0} > {1}")
    __ge__: ClassVar[Operator] = _operator("{0} >= {1}")
    __add__: ClassVar[Operator] = _operator("{0} + {1}")
    __radd__: ClassVar[Operator] = __add__
    __sub__: ClassVar[Operator] = _operator("{0} - {1}")
    __rsub__: ClassVar[Operator] = _operator("{1} - {0}")
    __mul__: ClassVar[Operator] = _operator("{0} * {1}")
    __rmul__: ClassVar[Operator] = __mul__
    __truediv__: ClassVar[Operator] = _operator("{0} / {1}")
    __mod__: ClassVar[Operator] = _operator("{0} % {1}")
    __and__: ClassVar[Operator] = _operator("{0} AND {1}")
    __or__: ClassVar[Operator] = _operator("{0} OR {1}")

    def __getattr__(self, method: str) -> Operator | Callable[..., Column]:
        """A method of `_METHODS`."""
        if sql := _METHODS.get(method):
            return lambda *values: Column(f"({sql.format(self.sql, *map(text_of, values))})")
        raise AttributeError(f"the embedded engine has no Column.{method}")

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __neg__(self) -> Column:
        return Column(f"(-{self.sql})")

    def __getitem__(self, member: str) -> Column:
        return Column(f"({self.sql})[{literal(member)}]", member)

    def isin(self, *values: Any) -> Column:
        found = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        return Column(f"({self.sql} IN ({', '.join(map(text_of, found))}))" if found else "FALSE")

    def cast(self, kind: str) -> Column:
        return Column(f"CAST({self.sql} AS {_TYPES.get(kind, kind)})", self.label)

    def try_cast(self, kind: str) -> Column:
        tried = f"TRY_CAST({self.sql} AS {_TYPES.get(kind, kind)})"
        if kind == "long":
            # DuckDB knows at once whether it is text, and keeps that branch alone.
            text = f"CAST({self.sql} AS VARCHAR)"
            whole = f"TRY_CAST(nullif(regexp_extract({text}, {literal(_WHOLE)}, 1), '') AS BIGINT)"
            tried = f"(CASE typeof({self.sql}) WHEN 'VARCHAR' THEN {whole} ELSE {tried} END)"
        return Column(tried, self.label)

    def alias(self, label: str) -> Column:
        return Column(self.sql, label, self.members)

    def when(self, condition: Column, value: Any) -> Column:
        cases = f"{self._cases} WHEN {condition.sql} THEN {text_of(value)}"
        return Column(f"(CASE{cases} END)", cases=cases)

    def otherwise(self, value: Any) -> Column:
        return Column(f"(CASE{self._cases} ELSE {text_of(value)} END)")

    def over(self, window: Window) -> Column:
        return Column(self.sql.replace(OVER, f" OVER ({window.sql})"))


class Window:
    """PySpark's `Window` and `WindowSpec` in one."""

    unboundedPreceding = -(1 << 63)  # noqa: N815

    def __init__(self, sql: str) -> None:
        self.sql = sql

    @classmethod
    def partitionBy(cls, *columns: Any) -> Window:  # noqa: N802
        return cls(f"PARTITION BY {', '.join(sqls(columns))}")

    def orderBy(self, *columns: Any) -> Window:  # noqa: N802
        return Window(f"{self.sql} ORDER BY {ordered(columns)}")

    def rowsBetween(self, start: int, end: int) -> Window:  # noqa: N802
        def bound(at: int) -> str:
            if at == self.unboundedPreceding:
                return "UNBOUNDED PRECEDING"
            return "CURRENT ROW" if at == 0 else f"{-at} PRECEDING" if at < 0 else f"{at} FOLLOWING"

        return Window(f"{self.sql} ROWS BETWEEN {bound(start)} AND {bound(end)}")


def ordered(columns: Iterable[Any]) -> str:
    """*columns* for an ORDER BY: nulls come first, as in Spark, and last where it
    descends.
    """
    return ", ".join(
        sql if sql.endswith(" NULLS LAST") else f"{sql} NULLS FIRST" for sql in sqls(columns)
    )


def __getattr__(function: str) -> Callable[..., Column]:
    """A function of `_FUNCTIONS` or `_JOINED`."""
    if sql := _FUNCTIONS.get(function):
        return lambda *columns: Column(sql.format(*sqls(columns)))
    if joined := _JOINED.get(function):
        return lambda *columns: Column(f"{joined[0]}{joined[1].join(sqls(columns))})")
    raise AttributeError(f"the embedded engine has no {function}")


def col(text: str) -> Column:
    return Column(name(text), text.rpartition(".")[2])


def lit(value: Any) -> Column:
    return value if isinstance(value, Column) else Column(literal(value))


def expr(sql: str) -> Column:
    """Translate an expression of Spark's SQL: a few functions have other names here,
    and a sum has another type.
    """
    translated = re.sub(r"\bdiv\b", "//", re.sub(r"\bat\b", '"at"', sql)).replace(
        "max_by(", "arg_max_null("
    )
    translated = re.sub(
        r"^(try_)?(sum\([\w *]+\)(?: FILTER .*)?)$", r"\1CAST(\2 AS BIGINT)", translated
    )
    return Column(f"({translated})")


def when(condition: Column, value: Any) -> Column:
    return Column("NULL").when(condition, value)


def broadcast(frame: Any) -> Any:
    return frame


def percentile_approx(column: Any, share: float | list[float], accuracy: int = 10_000) -> Column:
    """The exact percentile, where Spark's may be wrong by a rank in *accuracy*."""
    shares = f"[{', '.join(map(str, share))}]" if isinstance(share, list) else str(share)
    return Column(f"quantile_disc({column_of(column).sql}, {shares}){OVER}")


def concat_ws(separator: str, *columns: Any) -> Column:
    return Column(f"concat_ws({', '.join([literal(separator), *sqls(columns)])})")


def shiftleft(column: Any, bits: int) -> Column:
    # << refuses what is negative; beyond 64 bits this fails and Spark wraps
    return column_of(column) * (1 << bits)


def regexp_extract(column: Any, pattern: str, group: int) -> Column:
    return Column(f"regexp_extract({column_of(column).sql}, {literal(pattern)}, {group})")


def get_json_object(column: Any, path: str) -> Column:
    sql = column_of(column).sql
    return Column(
        f"CASE WHEN json_valid({sql}) THEN json_extract_string({sql}, {literal(path)}) END"
    )


def try_to_timestamp(column: Any, pattern: Column | None = None) -> Column:
    sql = column_of(column).sql
    if pattern is None:
        return Column(f"TRY_CAST({sql} AS TIMESTAMPTZ)")
    return Column(f"try_strptime({sql}, {literal(_TIMES[pattern.sql.strip(chr(39))])})")


def xxhash64(text: Any) -> Column:
    """A hash of text, for the few names of listeners. It is not the number that Spark
    gives, so no answer may contain one.

    DuckDB's own hash merges texts that differ in every eighth character alone, as
    10.0.112.7:10001 and 10.0.113.7:10000 do. Four characters before the text put others
    there.
    """
    sql = column_of(text).sql
    # hash() has a value for null, and Spark's has one, too.
    return Column(f"CAST(hash({sql}, '1234' || {sql}) >> 1 AS BIGINT)")


def array(*columns: Any) -> Column:
    members = column_of(columns[0]).members if columns else ()
    return Column(f"[{', '.join(sqls(columns))}]", members=members)


def struct(*columns: Any) -> Column:
    found = [column_of(each) for each in columns]
    members = ", ".join(f"{name(each.label)} := {each.sql}" for each in found)
    return Column(f"struct_pack({members})", members=tuple(each.label for each in found))


def inline(column: Column) -> Column:
    return Column(f"unnest({column.sql}, recursive := true)", members=column.members)


def _lambda(function: Callable[..., Column], names: list[str], *given: Column) -> str:
    return f"lambda {', '.join(names)}: {function(*given).sql}"


def _fresh(of: int) -> list[str]:
    return [f"x{next(_numbers)}" for _ in range(of)]


def filter(column: Any, keep: Callable[[Column], Column]) -> Column:  # noqa: A001
    names = _fresh(1)
    return Column(
        f"list_filter({column_of(column).sql}, {_lambda(keep, names, *map(Column, names))})"
    )


def transform(column: Any, function: Callable[..., Column]) -> Column:
    names = _fresh(len(inspect.signature(function).parameters))
    indexed = [
        Column(names[0]),
        *(Column(f"({each} - 1)") for each in names[1:]),
    ]  # Spark counts from 0
    return Column(f"list_transform({column_of(column).sql}, {_lambda(function, names, *indexed)})")


def aggregate(column: Any, zero: Column, merge: Callable[[Column, Column], Column]) -> Column:
    names = _fresh(2)
    return Column(
        f"list_reduce({column_of(column).sql}, {_lambda(merge, names, *map(Column, names))}, "
        f"{zero.sql})"
    )
