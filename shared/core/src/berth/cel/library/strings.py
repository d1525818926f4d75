"""Functions of strings: cel-go's extension (version 2), and regular expressions by RE2, which never backtracks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, Protocol

from berth.cel.library.overloads import Overload, function, method
from berth.cel.library.standard import check_length
from berth.cel.types import BOOL, INT, STRING, list_of
from berth.cel.values import Failed, UnknownValueError

_TEXTS: Final = list_of(STRING)
_SPACE: Final = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


class Pattern(Protocol):
    def search(self, text: str, /) -> Any: ...

    def finditer(self, text: str, /) -> Any: ...


@cache
def _re2() -> Any:
    import re2  # type: ignore[import-untyped] # noqa: PLC0415 - loaded by the first regular expression

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    return re2, options


# Of a compiled regular expression, which takes up to 3 ms; with 8 MB it took 0.4 s, at a cost of 70. Larger ones, such
# as `\pL{20}`, are refused.
_MAX_PROGRAM_BYTES: Final = 1 << 18


def compiled(pattern: str) -> Pattern | str:
    """The regular expression, or why it is none.

    Raises:
        UnknownValueError: it is too large.
    """
    regex = _compiled(pattern)
    if regex == _TOO_LARGE:
        raise UnknownValueError(f"regular expressions as large as {pattern!r}")
    return regex


_TOO_LARGE: Final = "pattern too large - compile failed: ``"


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Pattern | str:
    re2, options = _re2()
    try:
        return re2.compile(pattern, options=options)  # type: ignore[no-any-return] # re2 has no types
    except re2.error as error:
        text = error.args[0] if error.args else ""
        return _in_go(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _in_go(message: str) -> str:
    """RE2's message in the words of Go's package regexp."""
    what, _, where = message.partition(": ")
    return f"{_GO_ERRORS.get(what, what)}: `{where}`"


_GO_ERRORS: Final = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "trailing \\": "trailing backslash at end of expression",
}


def _with_pattern(pattern: str, use: Callable[[Pattern], Any], prefix: str = "Illegal regex: ") -> Any:
    regex = compiled(pattern)
    return Failed(f"{prefix}error parsing regexp: {regex}") if isinstance(regex, str) else use(regex)


def _matches(text: str, pattern: str) -> Any:
    return _with_pattern(pattern, lambda regex: regex.search(text) is not None, prefix="")


def _find(text: str, pattern: str) -> Any:
    found = _with_pattern(pattern, lambda regex: regex.search(text))
    if isinstance(found, Failed):
        return found
    return found[0] if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> Any:
    return _with_pattern(pattern, lambda regex: _all_of(regex, text, limit))


def _all_of(regex: Pattern, text: str, limit: int) -> list[str]:
    """As Go finds them: an empty match right after a match does not count."""
    found: list[str] = []
    end = -1
    for match in regex.finditer(text):
        if limit >= 0 and len(found) >= limit:
            break
        if match.start() != match.end() or match.start() != end:
            found.append(match[0])
        end = match.end()
    return found


def _out_of_range(index: int) -> Failed:
    return Failed(f"index out of range: {index}")


def _char_at(text: str, index: int) -> Any:
    return text[index : index + 1] if 0 <= index <= len(text) else _out_of_range(index)


def _index_of(text: str, part: str, offset: int = 0) -> Any:
    if not part:
        return offset
    return _out_of_range(offset) if offset < 0 else text.find(part, min(offset, len(text)))


def _last_index_of(text: str, part: str, offset: int | None = None) -> Any:
    if not part:
        return len(text) if offset is None else offset
    if offset is None:
        return text.rfind(part)
    if offset < 0:
        return _out_of_range(offset)
    return -1 if offset >= len(text) else text.rfind(part, 0, offset + len(part))


def _substring(text: str, start: int, end: int | None = None) -> Any:
    stop = len(text) if end is None else end
    if end is not None and start > end:
        return Failed(f"invalid substring range. start: {start}, end: {end}")
    outside = next((index for index in (start, stop) if not 0 <= index <= len(text)), None)
    return text[start:stop] if outside is None else _out_of_range(outside)


def _lower(text: str) -> str:
    return re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def _upper(text: str) -> str:
    return re.sub("[a-z]+", lambda match: match[0].upper(), text)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    found = text.count(old)
    check_length(len(text) + (found if limit < 0 else min(found, limit)) * (len(new) - len(old)))
    return text.replace(old, new, limit)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    return list(text) if limit < 0 or limit >= len(text) else [*text[: limit - 1], text[limit - 1 :]]


def _join(texts: list[Any], separator: str = "") -> Any:
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        return Failed(f"join: invalid input: {wrong}")
    check_length(sum(map(len, texts)) + len(separator) * (len(texts) - 1))
    return separator.join(texts)


def _quote(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'


_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}

STRINGS: Final[tuple[Overload, ...]] = (
    method("matches", "matches_string", (STRING, STRING), BOOL, _matches),
    function("matches", "matches", (STRING, STRING), BOOL, _matches),
    method("find", "string_find_string", (STRING, STRING), STRING, _find),
    method("findAll", "string_find_all_string", (STRING, STRING), _TEXTS, _find_all),
    method("findAll", "string_find_all_string_int", (STRING, STRING, INT), _TEXTS, _find_all),
    method("charAt", "string_char_at_int", (STRING, INT), STRING, _char_at),
    method("indexOf", "string_index_of_string", (STRING, STRING), INT, _index_of),
    method("indexOf", "string_index_of_string_int", (STRING, STRING, INT), INT, _index_of),
    method("lastIndexOf", "string_last_index_of_string", (STRING, STRING), INT, _last_index_of),
    method("lastIndexOf", "string_last_index_of_string_int", (STRING, STRING, INT), INT, _last_index_of),
    method("lowerAscii", "string_lower_ascii", (STRING,), STRING, _lower),
    method("upperAscii", "string_upper_ascii", (STRING,), STRING, _upper),
    method("replace", "string_replace_string_string", (STRING, STRING, STRING), STRING, _replace),
    method("replace", "string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace),
    method("split", "string_split_string", (STRING, STRING), _TEXTS, _split),
    method("split", "string_split_string_int", (STRING, STRING, INT), _TEXTS, _split),
    method("substring", "string_substring_int", (STRING, INT), STRING, _substring),
    method("substring", "string_substring_int_int", (STRING, INT, INT), STRING, _substring),
    method("trim", "string_trim", (STRING,), STRING, lambda text: text.strip(_SPACE)),
    method("join", "list_join", (_TEXTS,), STRING, _join),
    method("join", "list_join_string", (_TEXTS, STRING), STRING, _join),
    function("strings.quote", "strings_quote", (STRING,), STRING, _quote),
)
