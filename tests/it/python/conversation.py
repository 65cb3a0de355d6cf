"""The protocol between a test and a peer: one line is a request, one line its answer."""

import sys
import traceback


def serve(*commands):
    """Answers lines of the form `command argument ..` until the other side closes the pipe.

    The answer is the text that the command returns, or "done". An exception is an answer too: its type, message and place.
    """
    known = {command.__name__: command for command in commands}
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            answer = known[name](*arguments)
        except Exception as error:
            where = [f"{frame.name} line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            answer = f"{type(error).__name__}: {error} ({' > '.join(where[1:])})"
        print("done" if answer is None else " ".join(str(answer).split()), flush=True)
