"""Import with CloudVolume: its thread queues then poll every millisecond instead of every tenth of a second."""

import time
import types

import cloudfiles.threaded_queue

cloudfiles.threaded_queue.time = types.SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 100))
