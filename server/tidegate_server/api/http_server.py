"""uvicorn on one socket, started and stopped by us: it installs no signal handlers and writes no access log."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

KEEP_ALIVE_S = 75  # longer than the usual 60 s of proxies in front, so that it is they who close

# After the drain nothing should be left; what is gets this long to send its last bytes.
SHUTDOWN_GRACE_S = 3


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # a signal means drain, and the pod handles it


class HttpServer:
    """The API port; `start` returns once it listens."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                http="httptools",
                loop="none",  # the one that runs already
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
                backlog=2048,
            )
        )

    async def run(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._listener])

    async def started(self) -> None:
        """Wait until requests are answered."""
        while not self._server.started:
            await asyncio.sleep(0.01)  # uvicorn offers nothing to wait for

    def stop(self) -> None:
        """Close idle connections, let the others end, and make `run` return."""
        self._server.should_exit = True
