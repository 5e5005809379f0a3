"""
What `agent_harness.llm.upstream` needs of a transport: one POST, and its answer's bytes as they come.

There are two, chosen by the provider's setting ``transport``: `agent_harness.llm.upstream_http`, aiohttp's client,
which is the default, and `agent_harness.llm.upstream_sdk`, the openai SDK's.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

__all__ = ["PIECE_BYTES", "Reply", "Transport", "Unpackable", "cut_body"]

PIECE_BYTES = 256 * 1024
"""
Largest body that is sent in one piece. aiohttp warns of those over 1 MiB (a turn that fails where warnings are errors),
and writes them without letting anybody else run.
"""


class Unpackable(Exception):
    """
    The answer came packed (``content-encoding``), and broken.
    """


class Reply(Protocol):
    """
    One answer of a server, its head read, its body not.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read_piece(self, deadline: float) -> bytes:
        """
        The next bytes of the body, unpacked, as soon as there are any; ``b""`` at its end.

        Args:
            deadline: when to give up, in the event loop's time. Bytes that are there are given whatever the time.

        Raises:
            TimeoutError: nothing came; the connection is of no use any more.
            Unpackable: what came cannot be unpacked.
            Exception: the connection broke; of the transport's own kinds.
        """
        ...

    async def read_error(self) -> bytes:
        """
        The body of an answer that is no success, as much of it as can matter.
        """
        ...

    async def aclose(self) -> None:
        """
        Let go of the answer at once. Its connection is used again if the body was read to its end, else closed.
        """
        ...


class Transport(Protocol):
    """
    Connections to one server. Belongs to one event loop.
    """

    async def post(self, path: str, body: bytes, session_id: str) -> Reply:
        """
        POST *body* (JSON) to *path* below the base URL; the answer, whatever its status.

        Raises:
            Exception: the server cannot be reached; of the transport's own kinds.
        """
        ...

    async def aclose(self) -> None:
        """
        Close all connections; replies that are still read are cut.
        """
        ...


async def cut_body(body: bytes) -> AsyncIterator[memoryview]:
    """
    *body* in pieces of at most `PIECE_BYTES`, without a copy.
    """
    whole = memoryview(body)
    for start in range(0, len(body), PIECE_BYTES):
        yield whole[start : start + PIECE_BYTES]
