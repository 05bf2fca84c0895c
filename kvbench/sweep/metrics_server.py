"""An HTTP server for one page, `/metrics`, in a thread of its own. A client that is slow or silent holds up nobody."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvbench.errors import CannotRunError, UsageError
from kvbench.report.prometheus import CONTENT_TYPE

PATH = "/metrics"
LOOPBACK = "127.0.0.1"
CLIENTS = 16
"""At the same time; more are turned away."""
SILENCE_S = 5.0
"""A client that neither sends nor takes anything for so long is dropped."""


def parse_address(text: str) -> tuple[str, int]:
    """`:9464`, `9464`, `host:9464` or `[::1]:9464` as host and port; without a host the loopback address."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if (":" in host) != text.startswith("[") or not is_port:
        raise UsageError(f"{text!r} is no address for metrics", hint="give a port, as in :9464, or host:port")
    return host or LOOPBACK, int(port)


class MetricsServer:
    """Listens from the start and answers from `begin` on, so that a port that is taken shows before anything is
    measured."""

    def __init__(self, host: str, port: int) -> None:
        """Raises `UsageError` for a host that this machine is not, `CannotRunError` for a port that it may not have."""
        self._server = _opened(host, port)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        host = host.decode() if isinstance(host, bytes) else host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        host = str(self._server.server_address[0])
        return host == "::1" or host.startswith("127.")

    def begin(self, text: Callable[[], str]) -> None:
        """Answer with what `text` returns; it is called in a thread of each client."""
        self._server.text = text
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True, name="metrics")
        self._thread.start()

    def close(self) -> None:
        """Stop listening; clients that are being answered are not waited for."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    text: Callable[[], str]

    def __init__(self, family: int, address: Any) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(CLIENTS)
        super().__init__(address, _Page)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the name service who we are

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own affair, and no line between those of the sweep."""


class _Page(BaseHTTPRequestHandler):
    timeout = SILENCE_S
    server: _Server

    def version_string(self) -> str:
        return "kvbench"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] == PATH:
            self._send(200, CONTENT_TYPE, self.server.text().encode(), with_body=with_body)
        else:
            self._send(404, "text/plain; charset=utf-8", f"metrics are at {PATH}\n".encode(), with_body=with_body)

    def _send(self, status: int, kind: str, body: bytes, *, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is the sweep's."""


def _opened(host: str, port: int) -> _Server:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, address)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(f"no host {host!r} for metrics: {error}", hint="leave the host out: --metrics :9464") from None
    except OSError as error:
        where = f"{host}:{port}"
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"this machine is not {host}", hint="leave the host out: --metrics :9464") from None
        reasons = {errno.EADDRINUSE: "another program listens there", errno.EACCES: "this user may not listen there"}
        reason = reasons.get(error.errno or 0, error.strerror or str(error))
        raise CannotRunError(
            f"metrics cannot be served on {where}: {reason}", hint="take another port; :0 finds a free one"
        ) from None
