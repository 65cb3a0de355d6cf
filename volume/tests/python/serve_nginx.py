"""Runs nginx for a directory on a free port of the loopback. Prints the port when nginx answers, ends when standard input does.

Usage: serve_nginx.py NGINX DIRECTORY SCRATCH
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CONFIGURATION = """
daemon off;
master_process off;
pid {scratch}/nginx.pid;
error_log {scratch}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    uwsgi_temp_path {scratch}/uwsgi;
    scgi_temp_path {scratch}/scgi;
    gzip on;
    gzip_types *;
    gzip_min_length 0;
    server {{
        listen 127.0.0.1:{port};
        root {directory};
    }}
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def dies_with_me():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main():
    nginx, directory, scratch = sys.argv[1:4]
    # Another process may take the port between the probe and the start of nginx.
    for _ in range(10):
        port = free_port()
        configuration = Path(scratch, "nginx.conf")
        configuration.write_text(CONFIGURATION.format(scratch=scratch, directory=directory, port=port))
        started = subprocess.Popen(
            [nginx, "-p", scratch, "-e", f"{scratch}/error.log", "-c", configuration],
            stdin=subprocess.DEVNULL,
            preexec_fn=dies_with_me,
        )
        while started.poll() is None and not answers(port):
            time.sleep(0.01)
        if started.poll() is None:
            break
    else:
        sys.exit(Path(scratch, "error.log").read_text())
    print(port, flush=True)
    sys.stdin.buffer.read()
    started.kill()
    started.wait()
    os._exit(0)


main()
