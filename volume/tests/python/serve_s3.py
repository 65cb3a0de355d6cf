"""An S3 server (moto) on a free or given port of the loopback. It ends when its standard input does.

Usage: serve_s3.py PORT [DIRECTORY]

It prints its port when it answers. It starts with the objects DIRECTORY/BUCKET/KEY, so that a restarted server has them again. A
KEY that ends in `.gz` is stored without the ending, with Content-Encoding gzip, as CloudVolume does. The bucket `test` always
exists.
"""

import logging
import os
import sys
from pathlib import Path

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer


def fill(directory):
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket("test", "us-east-1")
    for bucket in sorted(directory.iterdir()) if directory else []:
        if bucket.name != "test":
            backend.create_bucket(bucket.name, "us-east-1")
        for file in sorted(bucket.rglob("*")):
            if file.is_file():
                key = file.relative_to(bucket).as_posix()
                stored = backend.put_object(bucket.name, key.removesuffix(".gz"), file.read_bytes())
                if key.endswith(".gz"):
                    stored.set_metadata({"Content-Encoding": "gzip"})


def main():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    port, directory = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    fill(directory)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.buffer.read()
    os._exit(0)


main()
