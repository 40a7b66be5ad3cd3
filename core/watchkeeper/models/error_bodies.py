"""The body of an HTTP error, read so far as it is of use: a server may send one that never comes to an end.

The SDK reads the whole of it before it raises, however long that takes, and its time-outs are for silence
alone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from httpx2 import AsyncClient

log = logging.getLogger(__name__)

MOST_ERROR_BYTES = 1 << 16
"""Decompressed; what is shown of a body is one line."""

ERROR_SECONDS = 10.0
"""For the whole of a body; its status is known by then."""

_OF_THE_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def error_bounding_client(**options: Any) -> AsyncClient:
    """The SDK's own HTTP client, which gives errors back with as much of their bodies as came within the
    bounds.

    `options` are those of `DefaultAsyncHttpxClient`. What breaks while such a body is read leaves it as long
    as it is: the status says more than the way in which the connection ended.
    """
    import httpx2
    from anthropic import DefaultAsyncHttpxClient

    class ErrorBounding(DefaultAsyncHttpxClient):
        async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
            response = await super().send(request, **how)
            if response.is_success or response.is_closed:
                return response
            headers = [
                (name, value)
                for name, value in response.headers.multi_items()
                if name.lower() not in _OF_THE_BODY
            ]
            return httpx2.Response(
                response.status_code, headers=headers, content=await beginning_of(response), request=request
            )

    return ErrorBounding(**options)


async def beginning_of(response: Any) -> bytes:
    """The first bytes of a body, and the end of its connection."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_SECONDS), aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= MOST_ERROR_BYTES:
                    break
                await asyncio.sleep(
                    0
                )  # a flood is always there at once, and would keep the clock from being looked at
    except Exception as error:  # whatever ends it: what came is what there is
        log.debug("the body of an error ended early: %r", error)
    finally:
        with suppress(Exception):  # the connection is of no more use, whatever closing it says
            await response.aclose()
    return bytes(body[:MOST_ERROR_BYTES])
