"""Copies volumes between a directory and an S3 server, for oracles that read and write only files.

A file NAME.gz becomes the object NAME with Content-Encoding gzip, as CloudVolume stores it, and the other way round.
"""

import functools
import os
import pathlib

import boto3
from botocore.config import Config


@functools.cache
def client(endpoint):
    # Cached: creating a client takes as long as a hundred requests.
    config = Config(retries={"max_attempts": 3}, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)


def to_s3(directory, place):
    server = client(place["endpoint"])
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file():
            key = f"{place['key']}/{path.relative_to(directory).as_posix()}"
            extra = {"ContentEncoding": "gzip"} if path.suffix == ".gz" else {}
            server.put_object(Bucket=place["bucket"], Key=key.removesuffix(".gz"), Body=path.read_bytes(), **extra)


def from_s3(place, directory):
    server = client(place["endpoint"])
    prefix = f"{place['key']}/"
    for page in server.get_paginator("list_objects_v2").paginate(Bucket=place["bucket"], Prefix=prefix):
        for entry in page.get("Contents", []):
            answer = server.get_object(Bucket=place["bucket"], Key=entry["Key"])
            path = os.path.join(directory, entry["Key"].removeprefix(prefix))
            if answer.get("ContentEncoding") == "gzip":
                path += ".gz"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            pathlib.Path(path).write_bytes(answer["Body"].read())
