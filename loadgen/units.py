"""What a person types as quantities, and quantities as a person reads them.

Every parser raises `BadArgument` with one line that says what was wrong, which value
came, and what would be right.
"""

from __future__ import annotations

import ipaddress
import math
import re
import socket
from typing import NamedTuple

DURATION_FORMS = "250ms, 30s, 5m or 1h"
SCHEMES = {"http": ("http", 80), "https": ("http", 443), "ws": ("ws", 80), "wss": ("ws", 443)}
"""Scheme of a URL -> the protocol, and the port unless one is given."""
LONGEST = 3650 * 86400.0
"""Seconds; the longest duration that is understood."""
_WHOLE_FROM = 100.0
"""Seconds from which on half a second is at most half a percent, and whole ones are
printed.
"""
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION = re.compile(
    r"(?=.)" + "".join(rf"(?:(\d+(?:\.\d+)?|\.\d+)\s*{unit}(?![a-z]))?" for unit in _UNITS)
)
"""A group for each of `_UNITS`, in their order."""


class BadArgument(ValueError):
    """What was asked for cannot be: exit status 2, and the message is the one line to
    show.
    """


class Target(NamedTuple):
    """Where to connect: *host* is a numeric address of *family*."""

    host: str
    port: int
    family: socket.AddressFamily

    @property
    def loopback(self) -> bool:
        """Whether this address never leaves the machine."""
        return ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return (
            f"[{self.host}]:{self.port}"
            if self.family == socket.AF_INET6
            else f"{self.host}:{self.port}"
        )


def parse_duration(text: str) -> float:
    """Seconds from a text such as `250ms`, `1.5s`, `5m`, `1h30m`: what `seconds`
    prints.

    Zero is allowed, and may be written without a unit. Raises BadArgument: it is no
    duration.
    """
    text = text.strip()
    if text == "0":
        return 0.0
    if match := _DURATION.fullmatch(text):
        parts = zip(match.groups(default="0"), _UNITS.values(), strict=True)
        return within(sum(float(number) * unit for number, unit in parts))
    raise BadArgument(f"{text!r} is not a duration: write {DURATION_FORMS}")


def within(value: float) -> float:
    """Return *value* seconds if a program can wait that long. Raises BadArgument: it
    cannot.
    """
    if not value <= LONGEST:
        raise BadArgument(
            f"a duration must be at most {LONGEST / 86400:.0f}d: write {DURATION_FORMS}"
        )
    return value


def parse_positive_duration(text: str) -> float:
    """Read a duration as `parse_duration` does, but one greater than zero."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise BadArgument(f"{text!r} must be longer than 0: write {DURATION_FORMS}")
    return seconds


def parse_count(text: str) -> int:
    """A whole number of at least 1, which may be written `100_000` or `100k`."""
    match = re.fullmatch(r"([\d_]+)([kM]?)", text.strip())
    value = (
        int(match[1].strip("_") or 0) * {"": 1, "k": 1000, "M": 1_000_000}[match[2]] if match else 0
    )
    if value < 1:
        raise BadArgument(
            f"{text!r} is not a count: write a whole number of at least 1, such as 1000 or 100k"
        )
    return value


class Address(NamedTuple):
    """A target as it was typed.

    Attributes:
        host: The host as it was written, a name or a number.
        protocol, path: What its URL says of them; None where it says nothing.
        tls: Whether its URL means TLS.
    """

    target: Target
    protocol: str | None = None
    path: str | None = None
    host: str = ""
    tls: bool = False


def parse_address(text: str) -> Address:
    """Read a target as `parse_target` does, or a URL such as
    `http://127.0.0.1:8080/path`.

    Raises BadArgument: as `parse_target`, or the URL's scheme is not one of `SCHEMES`.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Address(parse_target(text), host=_host(text))
    if scheme.lower() not in SCHEMES:
        raise BadArgument(
            f"{text!r}: {scheme} is not spoken: write {', '.join(SCHEMES)} before ://HOST:PORT/PATH"
        )
    protocol, port = SCHEMES[scheme.lower()]
    authority, slash, path = rest.partition("/")
    if "@" in authority or not (slash + path).isprintable() or any(sign in path for sign in " #"):
        raise BadArgument(
            f"{text!r} is not a URL that can be asked for: write {scheme}://HOST:PORT/PATH"
        )
    with_port = authority if re.search(r":\d+$", authority) else f"{authority}:{port}"
    return Address(
        parse_target(with_port), protocol, slash + path or None, _host(with_port), port == 443
    )


def _host(text: str) -> str:
    return text.rpartition(":")[0].removeprefix("[").removesuffix("]")


def parse_target(text: str) -> Target:
    """Read `127.0.0.1:8080`, `localhost:8080` or `[::1]:8080`; a name is resolved once,
    here.

    Raises BadArgument: there is no port, it is outside 1..65535, or the name does not
    resolve.
    """
    host, separator, port_text = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port_text.isdigit() or not 1 <= int(port_text) <= 65535:
        wanted = "write HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:8080"
        raise BadArgument(f"{text!r} is not a target: {wanted}")
    try:
        found = socket.getaddrinfo(host, int(port_text), type=socket.SOCK_STREAM)
    except OSError as error:
        why = f"cannot resolve {host!r} ({error.strerror})"
        raise BadArgument(f"{text!r}: {why}: write an address or a known name") from None
    # IPv4 first: 127.0.0.0/8 has source addresses to spare, ::1 is alone.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return Target(str(address[0]), int(port_text), family)


def seconds(value: float) -> str:
    """Write a duration: `250ms`, `1.5s`, `1m0.5s`, `5m`, `1h30m`; at most half a
    percent off.
    """
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0s"
    if size < 1e-3:
        return f"{value * 1e6:.3g}us"
    if size < 0.9995:
        return f"{value * 1e3:.3g}ms"
    if size < 60:
        return f"{value:.3g}s"
    tenths = round(size * 10) if size < _WHOLE_FROM else round(size) * 10
    minutes, rest = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest / 10, "s"))
    return ("-" if value < 0 else "") + "".join(
        f"{number:g}{unit}" for number, unit in parts if number
    )


def share(part: int, whole: int) -> str:
    """Write what *part* is of *whole*: `0.32%`, and `under 0.01%` for what is not quite
    nothing.
    """
    return "under 0.01%" if 0 < part < 0.00005 * whole else f"{part / whole:.2%}"


def size(nbytes: float) -> str:
    """Write a number of bytes in binary multiples, as in `3.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.3g} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1024
    return f"{nbytes:.3g} GiB"
