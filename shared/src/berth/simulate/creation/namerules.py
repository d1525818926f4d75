"""Names and labels as the API server takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from berth.api.meta import ObjectMeta

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL: Final = re.compile(_LABEL)
_DNS_NAME: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_NAME: Final = 253
_WORD: Final = re.compile("([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)")
_LONGEST_WORD: Final = 63


def refused_metadata(metadata: ObjectMeta) -> Iterator[str]:
    """What is wrong with an object's name, its namespace and its labels."""
    if not is_dns_name(metadata.name):
        yield f"metadata.name: want lower case letters, digits, '-' and '.', got {metadata.name!r}"
    if metadata.namespace and (not _DNS_LABEL.fullmatch(metadata.namespace) or len(metadata.namespace) > _LONGEST_WORD):
        yield f"metadata.namespace: want lower case letters, digits and '-', got {metadata.namespace!r}"
    yield from refused_labels(metadata.labels, "metadata.labels")


def refused_labels(labels: Mapping[str, str] | None, path: str) -> Iterator[str]:
    """What is wrong with labels, or with the labels that a selector names."""
    for key, value in (labels or {}).items():
        if not is_label_key(key):
            yield f"{path}: want keys such as 'app' or 'example.com/app', got {key!r}"
        if value and not _is_word(value):
            yield (
                f"{path}.{key}: want at most {_LONGEST_WORD} letters, digits, '-', '_' and '.', "
                f"the first and last a letter or digit, got {value!r}"
            )


def is_dns_name(name: str) -> bool:
    """Whether it may be the name of an object."""
    return len(name) <= _LONGEST_NAME and _DNS_NAME.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    """Whether it may be the key of a label, of a taint, of a topology."""
    prefix, slash, word = key.rpartition("/")
    return _is_word(word) and (not slash or is_dns_name(prefix))


def _is_word(text: str) -> bool:
    return len(text) <= _LONGEST_WORD and _WORD.fullmatch(text) is not None
