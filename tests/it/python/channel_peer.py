"""Uses a channel of ndarray-shm through the programs of docs/python, with the standard library only."""

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
    """Returns the message and the number of arrays that came with it. The arrays are kept."""
    message, arrays = channel.receive()
    parcels.extend(arrays)
    return f"{message!r}".replace(" ", "") + f" {len(arrays)}"


def about(index):
    parcel = parcels[int(index)]
    return " ".join([parcel.about["strategy"], parcel.dtype, ",".join(map(str, parcel.shape)), parcel.order])


def payload(index):
    """Returns every byte of an array."""
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
    """Writes bytes without a lock: the test ensures that no other process uses the elements."""
    data = bytes.fromhex(text)
    mapped[name].bytes[int(at) : int(at) + len(data)] = data


def let_go(name):
    mapped.pop(name).close()


def send(message, *indices):
    """Sends a word with received arrays."""
    channel.send(message, [parcels[int(index)] for index in indices])


def send_numbers(*numbers):
    channel.send([int(number) for number in numbers])


def give_up():
    """Closes the received arrays and the channel."""
    while parcels:
        parcels.pop().close()
    channel.close()


if __name__ == "__main__":
    serve(connect, receive, about, payload, keep, keep_handle, kept, write, let_go, send, send_numbers, give_up)
    sys.exit(0)
