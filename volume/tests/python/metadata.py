"""Metadata of Zarr v3 as some writers spell it, and none of the oracles: all of them read it."""

import json


def respell(encoding, change):
    """Lets `change` put another spelling into a volume's document, where the encoding is called after one."""
    spelling = {"zstd without checksum": without_checksum, "transpose F": transpose_as_text}.get(encoding)
    if spelling is None:
        return

    def respelled(document):
        document = json.loads(document)
        before = json.dumps(document["codecs"])
        spelling(document["codecs"])
        assert json.dumps(document["codecs"]) != before, f"there is nothing to spell otherwise in {before}"
        return json.dumps(document).encode()

    change(respelled)


def without_checksum(codecs):
    for codec in codecs:
        if codec["name"] == "zstd":
            del codec["configuration"]["checksum"]


def transpose_as_text(codecs):
    assert codecs[0]["name"] == "transpose"
    codecs[0]["configuration"]["order"] = "F"
