"""Prometheus' text format, version 0.0.4: samples of one metric stand together, however
many workers report it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from .record import Family, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(sources: Iterable[tuple[Mapping[str, str], Iterable[Family]]]) -> str:
    """The metrics of *sources*: pairs of labels, which every sample gets, and families.

    Sources may report different families: each appears once, in the order of the first
    that has it.
    """
    lines: dict[str, list[str]] = {}
    for labels, found in sources:
        for family in found:
            name = family.name + ("_total" if family.kind == "counter" else "")
            head = f"# HELP {name} {family.doc}\n# TYPE {name} {family.kind}"
            lines.setdefault(head, []).extend(_samples(family, name, labels))
    return _text(lines)


def merged(texts: Mapping[str, str], label: str) -> str:
    """Join several texts that `exposition` made into one. The keys of *texts* are the
    values of *label*, which every sample of a text gets.

    This serves what several processes report, also those that have ended. The samples
    are labelled and not summed: a worker that is replaced begins at zero, which a
    monitoring system understands of one worker's counter and not of a sum.
    """
    lines: dict[str, list[str]] = {}
    for value, text in texts.items():
        head = ""
        for line in text.splitlines():
            if line.startswith("# HELP"):
                head = line
            elif line.startswith("# TYPE"):
                head += f"\n{line}"
                lines.setdefault(head, [])
            else:
                lines[head].append(_labelled(line, label, value))
    return _text(lines)


def _text(lines: Mapping[str, Iterable[str]]) -> str:
    return "".join("\n".join((head, *samples)) + "\n" for head, samples in lines.items())


def _labelled(sample: str, label: str, value: str) -> str:
    key, _, number = sample.rpartition(" ")
    name, brace, labels = key.partition("{")
    return f'{name}{{{label}="{_escaped(value)}"{"," + labels if brace else "}"} {number}'


def _samples(family: Family, name: str, labels: Mapping[str, str]) -> Iterator[str]:
    values = family.values
    if isinstance(values, Histogram):
        for bound, count in values.cumulative():
            yield _sample(
                f"{name}_bucket",
                {**labels, "le": "+Inf" if bound == math.inf else repr(bound)},
                count,
            )
        yield _sample(f"{name}_sum", labels, values.total)
        yield _sample(f"{name}_count", labels, sum(values.counts))
    elif isinstance(values, Mapping):
        for value, number in sorted(values.items()):
            yield _sample(name, {**labels, family.label: value}, number)
    else:
        yield _sample(name, labels, values)


def _sample(name: str, labels: Mapping[str, str], number: float) -> str:
    said = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    shown = str(int(number)) if float(number).is_integer() else repr(float(number))
    return f"{name}{{{said}}} {shown}" if said else f"{name} {shown}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
