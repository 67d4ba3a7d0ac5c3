"""PySpark's columns and functions as SQL of DuckDB, as far as the pipeline uses them.

The rule of this module: *the answer is Spark's, or an error*. Where the two differ (the type of a sum, the place of
nulls, the index of a lambda), what is written here gives Spark's; what is missing is an AttributeError and no guess.
`tests/test_pipeline_engines.py` asks both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from itertools import count as counter
from typing import Any

OVER = "\0"
"""Stands behind an aggregate, where FILTER and OVER go. Gone when the SQL is used."""

_TYPES = {"long": "BIGINT", "int": "INTEGER", "string": "VARCHAR", "binary": "BLOB"}
_TIMES = {
    "dd/MMM/yyyy:HH:mm:ss.SSS": "%d/%b/%Y:%H:%M:%S.%g",
    "dd/MMM/yyyy:HH:mm:ss Z": "%d/%b/%Y:%H:%M:%S %z",
}
"""Java's patterns of instants, as DuckDB spells them."""

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
    """A column, or a literal, as SQL."""
    return value.sql if isinstance(value, Column) else literal(value)


def column_of(value: Any) -> Column:
    """A column, or the one that a string names."""
    return value if isinstance(value, Column) else col(value)


class Column:
    """An expression. *label*: what it is called in a frame; *members*: of a struct, or of what is unnested."""

    __slots__ = ("_cases", "label", "members", "sql")

    def __init__(self, sql: str, label: str = "", members: tuple[str, ...] = (), cases: str = "") -> None:
        self.sql: str = sql
        self.label: str = label
        self.members: tuple[str, ...] = members
        self._cases = cases

    def __bool__(self) -> bool:
        raise TypeError("a column has no truth: & | ~ instead of and, or, not")

    def _with(self, operator: str, other: Any, *, swapped: bool = False) -> Column:
        left, right = (text_of(other), self.sql) if swapped else (self.sql, text_of(other))
        return Column(f"({left} {operator} {right})")

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("=", other)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._with("<>", other)

    def __hash__(self) -> int:
        raise TypeError("a column has no hash: two of one text are not the same")

    def __lt__(self, other: Any) -> Column:
        return self._with("<", other)

    def __le__(self, other: Any) -> Column:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> Column:
        return self._with(">", other)

    def __ge__(self, other: Any) -> Column:
        return self._with(">=", other)

    def __add__(self, other: Any) -> Column:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Column:
        return self._with("+", other, swapped=True)

    def __sub__(self, other: Any) -> Column:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Column:
        return self._with("-", other, swapped=True)

    def __mul__(self, other: Any) -> Column:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Column:
        return self._with("*", other, swapped=True)

    def __truediv__(self, other: Any) -> Column:
        return self._with("/", other)

    def __mod__(self, other: Any) -> Column:
        return self._with("%", other)

    def __and__(self, other: Any) -> Column:
        return self._with("AND", other)

    def __or__(self, other: Any) -> Column:
        return self._with("OR", other)

    def __invert__(self) -> Column:
        return Column(f"(NOT {self.sql})")

    def __neg__(self) -> Column:
        return Column(f"(-{self.sql})")

    def __getitem__(self, member: str) -> Column:
        return Column(f"({self.sql})[{literal(member)}]", member)

    def bitwiseOR(self, other: Any) -> Column:  # noqa: N802
        return self._with("|", other)

    def isNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NULL)")

    def isNotNull(self) -> Column:  # noqa: N802
        return Column(f"({self.sql} IS NOT NULL)")

    def isin(self, *values: Any) -> Column:
        found = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        return Column(f"({self.sql} IN ({', '.join(map(text_of, found))}))" if found else "FALSE")

    def between(self, low: Any, high: Any) -> Column:
        return Column(f"({self.sql} BETWEEN {text_of(low)} AND {text_of(high)})")

    def rlike(self, pattern: str) -> Column:
        return Column(f"regexp_matches({self.sql}, {literal(pattern)})")

    def cast(self, kind: str) -> Column:
        return Column(f"CAST({self.sql} AS {_TYPES.get(kind, kind)})", self.label)

    def try_cast(self, kind: str) -> Column:
        return Column(f"TRY_CAST({self.sql} AS {_TYPES.get(kind, kind)})", self.label)

    def alias(self, label: str) -> Column:
        return Column(self.sql, label, self.members)

    def when(self, condition: Column, value: Any) -> Column:
        cases = f"{self._cases} WHEN {condition.sql} THEN {text_of(value)}"
        return Column(f"(CASE{cases} END)", cases=cases)

    def otherwise(self, value: Any) -> Column:
        return Column(f"(CASE{self._cases} ELSE {text_of(value)} END)")

    def over(self, window: Window) -> Column:
        return Column(self.sql.replace(OVER, f" OVER ({window.sql})"))

    def filtered(self, condition: str) -> Column:
        """This aggregate, over the rows where *condition* holds."""
        return Column(self.sql.replace(OVER, f" FILTER (WHERE {condition})"))


class Window:
    """PySpark's `Window` and `WindowSpec` in one."""

    unboundedPreceding = -(1 << 63)  # noqa: N815

    def __init__(self, sql: str) -> None:
        self.sql = sql

    @classmethod
    def partitionBy(cls, *columns: Any) -> Window:  # noqa: N802
        return cls(f"PARTITION BY {', '.join(column_of(each).sql for each in columns)}")

    def orderBy(self, *columns: Any) -> Window:  # noqa: N802
        return Window(f"{self.sql} ORDER BY {ordered(columns)}")

    def rowsBetween(self, start: int, end: int) -> Window:  # noqa: N802
        def bound(at: int) -> str:
            if at == self.unboundedPreceding:
                return "UNBOUNDED PRECEDING"
            return "CURRENT ROW" if at == 0 else f"{-at} PRECEDING" if at < 0 else f"{at} FOLLOWING"

        return Window(f"{self.sql} ROWS BETWEEN {bound(start)} AND {bound(end)}")


def ordered(columns: Iterable[Any]) -> str:
    """What ORDER BY says: nulls come first, as in Spark, and last where it descends."""
    found = [column_of(each).sql for each in columns]
    return ", ".join(sql if sql.endswith(" NULLS LAST") else f"{sql} NULLS FIRST" for sql in found)


def col(text: str) -> Column:
    return Column(name(text), text.rpartition(".")[2])


def lit(value: Any) -> Column:
    return value if isinstance(value, Column) else Column(literal(value))


def expr(sql: str) -> Column:
    """An expression of Spark's SQL, of which a few words are other ones here."""
    translated = re.sub(r"\bdiv\b", "//", re.sub(r"\bat\b", '"at"', sql)).replace("max_by(", "arg_max_null(")
    return Column(f"({translated})")


def when(condition: Column, value: Any) -> Column:
    return Column("NULL").when(condition, value)


def desc(column: Any) -> Column:
    return Column(f"{column_of(column).sql} DESC NULLS LAST")


def broadcast(frame: Any) -> Any:
    return frame


def _call(function: str, *columns: Any) -> Column:
    return Column(f"{function}({', '.join(column_of(each).sql for each in columns)})")


def _aggregate(sql: str, kind: str = "") -> Column:
    return Column(f"CAST({sql}{OVER} AS {kind})" if kind else sql + OVER)


def count(column: Any) -> Column:
    return _aggregate(f"count({column_of(column).sql})")


def sum(column: Any) -> Column:  # noqa: A001
    return _aggregate(f"sum({column_of(column).sql})", "BIGINT")


def try_sum(column: Any) -> Column:
    return Column(f"TRY_CAST(sum({column_of(column).sql}){OVER} AS BIGINT)")


def min(column: Any) -> Column:  # noqa: A001
    return _aggregate(f"min({column_of(column).sql})")


def max(column: Any) -> Column:  # noqa: A001
    return _aggregate(f"max({column_of(column).sql})")


def max_by(column: Any, by: Any) -> Column:
    return _aggregate(f"arg_max_null({column_of(column).sql}, {column_of(by).sql})")


def collect_list(column: Any) -> Column:
    sql = column_of(column).sql
    return Column(f"coalesce(list({sql}) FILTER (WHERE {sql} IS NOT NULL), [])")


def percentile_approx(column: Any, share: float | list[float], accuracy: int = 10_000) -> Column:
    """Exact, where Spark is wrong by a rank in *accuracy* at most."""
    shares = f"[{', '.join(map(str, share))}]" if isinstance(share, list) else str(share)
    return _aggregate(f"quantile_disc({column_of(column).sql}, {shares})")


def lag(column: Any) -> Column:
    return _aggregate(f"lag({column_of(column).sql})")


def lead(column: Any) -> Column:
    return _aggregate(f"lead({column_of(column).sql})")


def coalesce(*columns: Any) -> Column:
    return _call("coalesce", *columns)


def greatest(*columns: Any) -> Column:
    return _call("greatest", *columns)


def least(*columns: Any) -> Column:
    return _call("least", *columns)


def abs(column: Any) -> Column:  # noqa: A001
    return _call("abs", column)


def floor(column: Any) -> Column:
    return _call("floor", column).cast("long")


def trim(column: Any) -> Column:
    return Column(f"trim({column_of(column).sql}, ' ')")


def nullif(column: Any, other: Any) -> Column:
    return _call("nullif", column, other)


def concat_ws(separator: str, *columns: Any) -> Column:
    return _call("concat_ws", lit(separator), *columns)


def try_add(column: Any, other: Any) -> Column:
    return Column(f"TRY({column_of(column).sql} + {column_of(other).sql})")


def try_subtract(column: Any, other: Any) -> Column:
    return Column(f"TRY({column_of(column).sql} - {column_of(other).sql})")


def try_multiply(column: Any, other: Any) -> Column:
    return Column(f"TRY({column_of(column).sql} * {column_of(other).sql})")


def shiftleft(column: Any, bits: int) -> Column:
    return column_of(column) * (1 << bits)  # << refuses what is negative; beyond 64 bits this fails and Spark wraps


def shiftright(column: Any, bits: int) -> Column:
    return column_of(column)._with(">>", bits)


def regexp_extract(column: Any, pattern: str, group: int) -> Column:
    return _call("regexp_extract", column, lit(pattern), lit(group))


def get_json_object(column: Any, path: str) -> Column:
    sql = column_of(column).sql
    return Column(f"CASE WHEN json_valid({sql}) THEN json_extract_string({sql}, {literal(path)}) END")


def try_to_timestamp(column: Any, pattern: Column | None = None) -> Column:
    sql = column_of(column).sql
    if pattern is None:
        return Column(f"TRY_CAST({sql} AS TIMESTAMPTZ)")
    return Column(f"try_strptime({sql}, {literal(_TIMES[pattern.sql.strip(chr(39))])})")


def unix_micros(column: Any) -> Column:
    return _call("epoch_us", column)


def xxhash64(*columns: Any) -> Column:
    """Another number than Spark's, as good for telling values apart: no answer may hold one."""
    return Column(f"CAST(hash({', '.join(column_of(each).sql for each in columns)}) >> 1 AS BIGINT)")


def crc32(column: Any) -> Column:
    return _call("crc32", column)


def array(*columns: Any) -> Column:
    found = [column_of(each) for each in columns]
    return Column(f"[{', '.join(each.sql for each in found)}]", members=found[0].members if found else ())


def struct(*columns: Any) -> Column:
    found = [column_of(each) for each in columns]
    members = ", ".join(f"{name(each.label)} := {each.sql}" for each in found)
    return Column(f"struct_pack({members})", members=tuple(each.label for each in found))


def concat(*columns: Any) -> Column:
    """Of texts or arrays; null where one of them is."""
    return Column(f"({' || '.join(column_of(each).sql for each in columns)})")


def explode(column: Any) -> Column:
    return _call("unnest", column)


def inline(column: Column) -> Column:
    return Column(f"unnest({column.sql}, recursive := true)", members=column.members)


def array_min(column: Any) -> Column:
    return _call("list_min", column)


def array_max(column: Any) -> Column:
    return _call("list_max", column)


def _lambda(function: Callable[..., Column], of: int) -> tuple[str, list[str]]:
    names = [f"x{next(_numbers)}" for _ in range(of)]
    return function(*(Column(each) for each in names)).sql, names


def filter(column: Any, keep: Callable[[Column], Column]) -> Column:  # noqa: A001
    sql, names = _lambda(keep, 1)
    return Column(f"list_filter({column_of(column).sql}, lambda {names[0]}: {sql})")


def transform(column: Any, function: Callable[..., Column]) -> Column:
    names = [f"x{next(_numbers)}" for _ in inspect.signature(function).parameters]
    indexed = [Column(names[0]), *(Column(f"({each} - 1)") for each in names[1:])]  # Spark counts from 0
    return Column(f"list_transform({column_of(column).sql}, lambda {', '.join(names)}: {function(*indexed).sql})")


def aggregate(column: Any, zero: Column, merge: Callable[[Column, Column], Column]) -> Column:
    sql, names = _lambda(merge, 2)
    return Column(f"list_reduce({column_of(column).sql}, lambda {', '.join(names)}: {sql}, {zero.sql})")
