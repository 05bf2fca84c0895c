"""A closed loop: clients that each send their next request when their last one has ended."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbench.workload.request import Request


class Clients:
    """Deals sessions to clients in the workload's order.

    A session is a request that follows no other, with all that follow it. Whatever becomes of its requests, the client
    is free when the last of them has ended, and takes the next session `think_time_s` later. Which session comes next
    does not depend on time, only when it comes does.
    """

    def __init__(self, requests: Iterable[Request], count: int) -> None:
        self._coming: deque[Request] = deque()
        self._session: dict[int, int] = {}
        self._open: dict[int, int] = {}
        """First request of a session → its requests that have not ended"""
        for request in requests:
            first = request.request_id if request.after is None else self._session[request.after]
            self._session[request.request_id] = first
            self._open[first] = self._open.get(first, 0) + 1
            if request.after is None:
                self._coming.append(request)
        self._count = count

    def __bool__(self) -> bool:
        """Whether sessions are still to be dealt."""
        return bool(self._coming)

    def begin(self) -> list[tuple[float, Request]]:
        """The first session of every client, at 0."""
        return [(0.0, self._coming.popleft()) for _ in range(min(self._count, len(self._coming)))]

    def ended(self, request_id: int, end_s: float) -> list[tuple[float, Request]]:
        """A request has ended: the session that its client begins now, with its arrival, or nothing."""
        first = self._session[request_id]
        self._open[first] -= 1
        if self._open[first] or not self._coming:
            return []
        following = self._coming.popleft()
        return [(end_s + following.think_time_s, following)]
