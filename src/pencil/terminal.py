"""Text for a terminal: control characters made visible, rounded durations, counted nouns."""

import re

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, bidirectional control characters, and undecodable bytes."""


def visible(text: str) -> str:
    """Return the text with every control character as its code, such as ``\\x1b`` for escape.

    Class names, keys, file names and recipes may come from an untrusted source. An escape sequence in them could clear
    the screen, change its title or forge pencil's output.
    """
    return CONTROLS.sub(_code, text)


def shorten(text: str, most: int) -> str:
    """Return the text with its control characters visible, cut to at most this many characters."""
    shown = visible(" ".join(text[: 4 * most].split()))
    return shown if len(shown) <= most and len(text) <= 4 * most else shown[: most - 1] + "…"


def _code(found: "re.Match[str]") -> str:
    number = ord(found[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a file name that is not UTF-8
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit, rounded."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48)):
        count = seconds / length
        if count < most:
            return f"{max(1, round(count))} {unit}" if count >= 10 or unit == "s" else f"{count:.1f} {unit}"
    return f"{seconds / 86400:.1f} days"


def percent(fraction: float | None) -> str:
    """Return a fraction as per cent, or a dash for None."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def agreed(count: int, one: str, several: str) -> str:
    """Return the word that agrees with a count, such as ``is`` or ``are``."""
    return one if count == 1 else several


def counted(count: int, one: str, several: str | None = None) -> str:
    """Return a count and its noun: ``1 label``, ``1,347 labels``; ``several`` is an irregular plural."""
    return f"{count:,} {agreed(count, one, several or f'{one}s')}"
