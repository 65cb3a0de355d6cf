"""Speaks on a channel of ndarray-shm with the programs of docs/python. Nothing but the standard library."""

import sys

from conversation import serve
from ndshm_channel import Channel, open_handle

channel = None
parcels = []
mapped = {}


def connect(path):
    global channel
    channel = Channel.connect(path)


def receive():
    """Answers with the message and how many arrays came with it, which are kept."""
    message, arrays = channel.receive()
    parcels.extend(arrays)
    return f"{message!r}".replace(" ", "") + f" {len(arrays)}"


def about(index):
    parcel = parcels[int(index)]
    return " ".join([parcel.about["strategy"], parcel.dtype, ",".join(map(str, parcel.shape)), parcel.order])


def payload(index):
    """Answers with every byte of an array."""
    array = parcels[int(index)].map()
    try:
        return "0x" + array.bytes.hex()
    finally:
        array.close()


def keep(index):
    """Maps an array for writing until it is let go."""
    mapped[index] = parcels[int(index)].map(write=True)


def keep_handle(text):
    mapped[text] = open_handle(text)


def kept(name):
    return "0x" + mapped[name].bytes.hex()


def write(name, at, text):
    """Writes bytes, with the elements to itself because the test sees to it."""
    data = bytes.fromhex(text)
    mapped[name].bytes[int(at) : int(at) + len(data)] = data


def let_go(name):
    mapped.pop(name).close()


def send(message, *indices):
    """Sends a word with arrays that were received."""
    channel.send(message, [parcels[int(index)] for index in indices])


def send_numbers(*numbers):
    channel.send([int(number) for number in numbers])


def give_up():
    """Closes what came, and the channel."""
    while parcels:
        parcels.pop().close()
    channel.close()


if __name__ == "__main__":
    serve(connect, receive, about, payload, keep, keep_handle, kept, write, let_go, send, send_numbers, give_up)
    sys.exit(0)
