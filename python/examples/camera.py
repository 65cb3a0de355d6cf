"""A synthetic camera in one process, and a viewer in another: `python camera.py`. With `--show` the viewer draws, by matplotlib."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy

import ndshm

SHAPE, RATE, SECONDS = (240, 320), 100, 1.0


def camera(name: str) -> None:
    """Write frames with a spot that goes round. The exposure is a value beside the elements."""
    y, x = numpy.indices(SHAPE)
    # `resume`: after a crash the next run goes on with the same stream, and with the viewers that wait for it.
    with ndshm.Stream.create(name, SHAPE, "uint16", slots=8, meta={"exposure": "float64"}, notes={"axes": "y x"}, resume=True) as out:
        print("camera: ready", flush=True)
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) < SECONDS:
            with out.frame() as frame:  # never waits for the viewer
                spot = 120 + 80 * numpy.sin(6 * seconds), 160 + 80 * numpy.cos(6 * seconds)
                frame.x[:] = 1000 * numpy.exp(-((y - spot[0]) ** 2 + (x - spot[1]) ** 2) / 200)
                frame.meta["exposure"] = 1 / RATE
            time.sleep(1 / RATE)


def view(name: str, show: bool) -> None:
    """Look at the newest frame, and then at the one that is the newest when that is done."""
    image, seen, delay = None, 0, 0.0
    for frame in ndshm.Stream.open(name, latest=True):  # ends with the stream
        spot = numpy.unravel_index(frame.x.argmax(), SHAPE)
        assert 39 <= spot[0] <= 201 and 79 <= spot[1] <= 241 and frame.meta == {"exposure": 1 / RATE}
        seen, delay = seen + 1, max(delay, time.time() - frame.wall_time)
        if show:
            from matplotlib import pyplot

            if image is None:
                pyplot.ion()
                image = pyplot.imshow(frame.x)
            image.set_data(frame.copy())  # matplotlib keeps it
            pyplot.title(f"frame {frame.number}")
            pyplot.pause(0.001)
    print(f"viewer: {seen} frames, the last had number {frame.number}; at most {1000 * delay:.1f} ms old")
    assert seen > 1


def main(show: bool) -> None:
    name = f"camera-{os.getpid()}"
    with subprocess.Popen([sys.executable, __file__, "--camera", name], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        print(process.stdout.readline(), end="")
        view(name, show)
    assert process.returncode == 0
    assert not ndshm.Stream.unlink(name)  # the camera has removed it


if __name__ == "__main__":
    if "--camera" in sys.argv:
        camera(sys.argv[2])
    else:
        main("--show" in sys.argv)
