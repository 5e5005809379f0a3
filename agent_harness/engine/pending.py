"""
What wakes the turn that waits for results. It only wakes; the transcript alone says what is open.
"""

import asyncio

__all__ = ["Pending"]


class Pending:
    """
    The future of a turn that waits; none while it does not.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return self._future is not None

    def wake(self) -> None:
        """
        Wake the turn, if it waits.
        """
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """
        Return when woken, or after *timeout* seconds.
        """
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = None if timeout is None else loop.call_later(timeout, self.wake)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()
