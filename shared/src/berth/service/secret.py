"""Text that must not be seen: it takes a word of its own to get it out."""

from __future__ import annotations


class Secret:
    """A password or token. ``repr``, ``str`` and logs show stars; :meth:`reveal` is for the one who sends it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("pickling a secret: it would be written in the clear")
