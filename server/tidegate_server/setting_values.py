"""The text of one flag or environment variable to its value; each parser raises ValueError with what is wrong."""

import re
from collections.abc import Callable
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

Parse = Callable[[str], object]

_UNITS_BYTES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|[kmgt]i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(|ms|s|m|h)")
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**63 - 1
MAX_S = 365 * 24 * 3600
MAX_RATIO = 1000.0


def text(raw: str) -> str:
    if not raw.strip():
        raise ValueError("a text is needed")
    return raw


def path(raw: str) -> Path:
    return Path(text(raw))


def one_of(*choices: str) -> Parse:
    def parse(raw: str) -> str:
        if raw not in choices:
            raise ValueError(f"{raw!r} is not one of {', '.join(choices)}")
        return raw

    return parse


def member_of(kind: type[StrEnum]) -> Parse:
    check = one_of(*kind)

    def parse(raw: str) -> StrEnum:
        return kind(str(check(raw)))

    return parse


def whole_number(least: int, most: int = MAX_COUNT) -> Parse:
    def parse(raw: str) -> int:
        try:
            value = int(raw)
        except ValueError:
            raise ValueError(f"{raw!r} is not a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return parse


def power_of_two(least: int, most: int) -> Parse:
    number = whole_number(least, most)

    def parse(raw: str) -> int:
        value = number(raw)
        assert isinstance(value, int)
        if value & (value - 1):
            raise ValueError(f"{value} is not a power of two, such as 16 or 32")
        return value

    return parse


def ratio(raw: str) -> float:
    """`1.5`; or 0 where no ratio is kept."""
    try:
        value = float(raw)
    except ValueError:
        raise ValueError(f"{raw!r} is not a number") from None
    if not (value == 0 or 1 <= value <= MAX_RATIO):
        raise ValueError(f"{raw!r} is neither 0 nor between 1 and {MAX_RATIO:g}")
    return value


def size_bytes(least: int) -> Parse:
    """Bytes, from `2GiB`, `512Mi`, `1.5G` or a number of them."""

    def parse(raw: str) -> int:
        match = _SIZE.fullmatch(raw.strip())
        if match is None:
            raise ValueError(f"{raw!r} is not a size, such as 2GiB or 512MiB")
        value = Decimal(match[1]) * _UNITS_BYTES[match[2].lower()]
        if not least <= value <= MAX_BYTES:
            raise ValueError(f"{raw!r} is not between {least} bytes and 8 EiB")
        return int(value)

    return parse


def seconds(raw: str) -> float:
    """`30`, `1.5s`, `2m` or `500ms`."""
    match = _DURATION.fullmatch(raw.strip())
    if match is None:
        raise ValueError(f"{raw!r} is not a duration, such as 30s or 2m")
    value = float(match[1]) * _UNITS_S[match[2]]
    if value > MAX_S:
        raise ValueError(f"{raw!r} is more than a year")
    return value


def seconds_above_zero(raw: str) -> float:
    """As `seconds`, but some time has to pass."""
    value = seconds(raw)
    if value == 0:
        raise ValueError(f"{raw!r} is no time at all")
    return value


def header_name(raw: str) -> str:
    """The name of an HTTP header, a token of RFC 9110."""
    if _HEADER_NAME.fullmatch(raw) is None:
        raise ValueError(f"{raw!r} is not the name of a header, such as X-Team")
    return raw


def yes_or_no(raw: str) -> bool:
    match raw.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off":
            return False
        case _:
            raise ValueError(f"{raw!r} is neither true nor false")
