"""
Ports that are told before they are listened on.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["hold_port"]


@contextmanager
def hold_port(port: int = 0) -> Iterator[int]:
    """
    A free port, or *port*, which nobody else is given meanwhile, however many tests run side by side. A connection to
    it is refused until a server listens on it.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        found: int = held.getsockname()[1]
        if sys.platform != "linux":
            # Only there may a server listen on a port that another socket is bound to.
            held.close()
        yield found
