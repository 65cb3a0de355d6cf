"""Spellings of Zarr v3 metadata that some programs write. The oracles read them all, but write none."""

import json


def respell(encoding, change):
    """If the encoding is named after a spelling, lets `change` put that spelling into the volume's document."""
    spelling = {"zstd without checksum": without_checksum, "transpose F": transpose_as_text}.get(encoding)
    if spelling is None:
        return

    def respelled(document):
        document = json.loads(document)
        before = json.dumps(document["codecs"])
        spelling(document["codecs"])
        assert json.dumps(document["codecs"]) != before, f"nothing to respell in {before}"
        return json.dumps(document).encode()

    change(respelled)


def without_checksum(codecs):
    for codec in codecs:
        if codec["name"] == "zstd":
            del codec["configuration"]["checksum"]


def transpose_as_text(codecs):
    assert codecs[0]["name"] == "transpose"
    codecs[0]["configuration"]["order"] = "F"
