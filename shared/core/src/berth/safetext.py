"""Text that may be shown: without control characters, and without the passwords of URLs.

Names, messages and annotations come from outside. All output for people and all lines of text pass through here; JSON
escapes these characters itself.
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # Control characters: C0 without the tab, DEL, C1.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Characters that change the direction of text.
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f"  # Invisible line ends, annotations and tags.
    "\ud800-\udfff]"  # Surrogates, which no stream can write.
)
_UNSAFE_IN_JSON: Final = re.compile(_UNSAFE.pattern.replace("\x0a-\x1f", "\x0b-\x1f"))
_LINE_END: Final = "\n"
# The user part of a URL, up to its last `@`: a password may contain one that is not escaped.
_USER_OF_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<user>[^/?#\s'\"]*)@")


def one_line(text: str) -> str:
    r"""The text with every such character escaped, line ends included: ``\\x1b`` for an escape."""
    return _UNSAFE.sub(_escaped, text) if not text.isascii() or not text.isprintable() else text


def lines(text: str) -> str:
    """The same for text of several lines, whose line ends stay."""
    return _LINE_END.join(one_line(line) for line in text.split(_LINE_END))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def in_json(text: str) -> str:
    """JSON with these characters (only texts contain them) in JSON's own form; line ends between values stay."""
    return _UNSAFE_IN_JSON.sub(_escaped_in_json, text) if not text.isascii() or "\x7f" in text else text


def _escaped_in_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def without_passwords(text: str) -> str:
    """The text, with ``***`` in place of user and password in every URL."""
    return _USER_OF_URL.sub(r"\g<scheme>***@", text) if "@" in text else text
