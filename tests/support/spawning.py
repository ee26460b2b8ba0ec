"""Run granian where Python spawns processes: python -m tests.support.spawning APP PORT WORKERS."""

import multiprocessing
import sys

from granian.constants import Interfaces
from granian.server import Server

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    _, target, port, workers = sys.argv
    Server(target, port=int(port), workers=int(workers), interface=Interfaces.ASGI, workers_kill_timeout=5).serve()
