"""What listens for what a guest's page sends out: HTTP of any method, and UDP, for a frame that speaks WebRTC."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Collector:
    """A host of another origin that notes the path of each request, and serves pages without a policy."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.pages: dict[str, str] = {}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = collector.pages.get(self.path)

                if page is None:
                    collector.paths.append(self.path)

                body = (page or "").encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8" if page else "text/css")
                self.send_header("Access-Control-Allow-Origin", "*")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_HEAD = do_OPTIONS = do_GET

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._udp.setblocking(False)
        self.port = self._server.server_address[1]
        self.udp_port = self._udp.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._udp.close()

    def datagrams(self) -> int:
        """Returns how many datagrams have come since it was last asked."""
        count = 0

        while True:
            try:
                self._udp.recv(2048)
            except BlockingIOError:
                return count

            count += 1

    def attacks_seen(self) -> set[str]:
        """Returns the names of the attacks that arrived: the first part of each path."""
        return {path.split("?")[0].strip("/").split("/")[0] for path in self.paths} - {"", "favicon.ico"}
