"""``Batcher``: dynamic batching of the requests that arrive while a worker is busy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class OverloadError(RuntimeError):
    """Error of a request that arrives while too many requests wait."""

    def __init__(self, text: str = "the server is busy; try again later.") -> None:
        super().__init__(text)


class Batcher(Generic[T, R]):
    """Dynamic batching: handles waiting items together, in one call at a time in a thread.

    While a call runs, further items wait, and the next call handles all of them: batches grow with
    the load, and a single item does not wait.

    Args:
        handle: Function from a batch of items to their results, in order.
        max_batch: Maximum number of items of a call.
        max_waiting: Maximum number of items that wait.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     async with Batcher(lambda batch: [len(batch)] * len(batch), 8, 100) as batcher:
        ...         return await asyncio.gather(*(batcher.add(n) for n in range(3)))
        >>> asyncio.run(main())
        [3, 3, 3]
    """

    def __init__(
        self, handle: Callable[[Sequence[T]], Sequence[R]], max_batch: int, max_waiting: int
    ) -> None:
        self._handle, self._max_batch = handle, max_batch
        self._queue: asyncio.Queue[tuple[T, asyncio.Future[R]]] = asyncio.Queue(max_waiting)
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher[T, R]:
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Handles the waiting items, then stops the worker."""
        await self._queue.join()
        if self._worker is not None:
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker
            self._worker = None

    @property
    def num_waiting(self) -> int:
        """Number of items that wait."""
        return self._queue.qsize()

    async def add(self, item: T) -> R:
        """Waits for the result of an item.

        Raises:
            OverloadError: If too many items wait, or the worker has stopped.
        """
        if self._worker is None:
            raise OverloadError("the server is stopping; try another server.")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        try:
            self._queue.put_nowait((item, future))
        except asyncio.QueueFull:
            raise OverloadError from None
        return await future

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._max_batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                results = await asyncio.to_thread(self._handle, [item for item, _ in batch])
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():  # the client has disconnected
                        future.set_result(result)
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            finally:
                for _ in batch:
                    self._queue.task_done()
