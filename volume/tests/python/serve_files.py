"""A web server of files with range requests. It prints its port when it answers, and ends when its standard input does.

Usage: serve_files.py DIRECTORY [tags] [lengthless] [plain] [rangeless]

`tags`: answers have an ETag. `lengthless`: answers have no Content-Length (chunked), as those of dynamic servers. If NAME is
missing and `NAME.gz` exists, the server sends that with Content-Encoding gzip; with `plain` it answers 404. `rangeless`: files are
sent whole, whatever range is requested.
"""

import os
import re
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(sys.argv[1])
WITH = set(sys.argv[2:])


class Files(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are separate writes; with Nagle's algorithm and delayed acknowledgements an answer would take 40 ms.
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        path = ROOT / unquote(urlsplit(self.path).path).lstrip("/")
        packed = path.with_name(path.name + ".gz")
        encoding = None
        if not path.is_file() and packed.is_file() and "plain" not in WITH:
            path, encoding = packed, "gzip"
        if not path.is_file():
            return self.refuse(404)
        content, facts = path.read_bytes(), path.stat()
        asked = "" if "rangeless" in WITH else self.headers.get("Range", "")
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", asked)
        begin, end = 0, len(content)
        if wanted:
            first, last = wanted.groups()
            if first:
                begin, end = int(first), min(int(last) + 1, end) if last else end
            else:
                begin = max(0, end - int(last))
            if begin >= end:
                return self.refuse(416)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        if encoding:
            self.send_header("Content-Encoding", encoding)
        if "tags" in WITH:
            self.send_header("ETag", f'"{facts.st_mtime_ns}-{facts.st_size}"')
        self.send_header("Last-Modified", formatdate(facts.st_mtime, usegmt=True))
        body = content[begin:end]
        if "lengthless" in WITH:
            self.send_header("Transfer-Encoding", "chunked")
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        """Ignores clients that close their connection early."""


server = Server(("127.0.0.1", 0), Files)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.buffer.read()
os._exit(0)
