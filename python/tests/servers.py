"""A web server of a directory, which can be made to stall, and to name entity tags."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class StallingServer:
    """Serves a directory. Requests with a path that `stalls` accepts get no answer until `release` is set.

    With `tags`, answers have a strong entity tag, made of the time in seconds and the length, as nginx makes it.
    """

    def __init__(self, directory: Path, stalls: Callable[[str], bool], tags: bool) -> None:
        self.release = threading.Event()
        self.stalled = threading.Event()
        self.asked: list[str] = []
        self.stalls = stalls
        server = self

        class Handler(SimpleHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(directory))  # type: ignore[arg-type]

            def do_GET(self) -> None:
                server.asked.append(self.path)
                if stalls(self.path):
                    server.stalled.set()
                    server.release.wait()
                try:
                    super().do_GET()
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def end_headers(self) -> None:
                path = Path(self.translate_path(self.path))
                if tags and path.is_file():
                    facts = path.stat()
                    self.send_header("ETag", f'"{int(facts.st_mtime):x}-{facts.st_size:x}"')
                super().end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # a client that was killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(directory: Path, stalls: Callable[[str], bool] = lambda _: False, *, tags: bool = False) -> Iterator[StallingServer]:
    server = StallingServer(directory, stalls, tags)
    try:
        yield server
    finally:
        server.close()
