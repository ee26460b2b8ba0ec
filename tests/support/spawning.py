"""Run granian's command where Python spawns processes: python -m tests.support.spawning, and granian's arguments."""

import multiprocessing
import sys

from granian.cli import entrypoint

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.argv[0] = "granian"
    entrypoint()
