"""How a test talks to a peer: one line asks, one line answers."""

import sys
import traceback


def serve(*commands):
    """Answers lines of the form `command argument ..` until the other side closes the pipe.

    A command answers with the text it returns, or "done"; an exception is an answer too: type, message, and where.
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
