"""
Futures by call_id. They wake the turn that waits for results; the transcript alone says what is open.
"""

import asyncio

__all__ = ["Pending"]


class Pending:
    """
    One future for each open call, there before anyone can hear of the call.
    """

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def open(self, call_id: str) -> None:
        """
        Make the future of *call_id*.
        """
        self._futures[call_id] = asyncio.get_running_loop().create_future()

    def resolve(self, call_id: str) -> None:
        """
        Wake whoever waits for *call_id*; the future is gone afterwards.
        """
        future = self._futures.pop(call_id, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        """
        Return when one of the open calls is closed, when there is none, or after *timeout* seconds.
        """
        future = next(iter(self._futures.values()), None)
        if future is not None:
            await asyncio.wait((future,), timeout=timeout)
