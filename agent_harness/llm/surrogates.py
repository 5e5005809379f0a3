"""
Half characters in streamed text.

A server that cuts its text in UTF-16 units sends an emoji as two JSON escapes in two deltas, each a lone surrogate,
which can neither be encoded nor shown.
"""

__all__ = ["SurrogateJoiner", "join_halves"]


class SurrogateJoiner:
    """
    Joins the halves of characters that came in two deltas of one text. A half that stays alone becomes U+FFFD.
    """

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    def feed(self, delta: str) -> str:
        """
        *delta* with the half held back before it, and without one at its own end. May be empty.
        """
        if not self._high and delta.isascii():
            return delta
        text = self._high + delta
        self._high = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        return join_halves(text)

    def flush(self) -> str:
        """
        U+FFFD if a half is still held back at the end of the text, else nothing.
        """
        rest = "\ufffd" if self._high else ""
        self._high = ""
        return rest


def join_halves(text: str) -> str:
    """
    *text* with the halves in it joined, and U+FFFD for those that stand alone.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
