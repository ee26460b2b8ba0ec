"""Measure the parts: sealing 1 KiB, and importing the package. Run it with a Python that has mrtr_server."""

import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from statistics import median

from mrtr_server.crypto.codec import SealedCodec
from mrtr_server.crypto.keys import KeyRing

PAYLOAD_BYTES = 1024
REPEATS = 11
CALLS = 2000
# Isolated, and timed from within, so that neither the environment nor the start of the interpreter counts.
IMPORT = """
import sys, time
started = time.perf_counter()
import mrtr_server
print(time.perf_counter() - started, ",".join(name for name in sys.argv[1:] if name in sys.modules))
"""
EXTRAS = ("asyncpg", "jwt", "jsonschema_rs", "opentelemetry", "limits", "uvloop")


def main() -> None:
    codec = SealedCodec(KeyRing.generate(), purpose="state")
    payload = os.urandom(PAYLOAD_BYTES)
    token = codec.seal(payload)
    assert codec.unseal(token) == payload
    rows = [
        ("seal 1 KiB, µs", _microseconds(lambda: codec.seal(payload))),
        ("unseal 1 KiB, µs", _microseconds(lambda: codec.unseal(token))),
        ("seal and unseal 1 KiB, µs", _microseconds(lambda: codec.unseal(codec.seal(payload)))),
    ]
    imports, extras = _import_seconds()
    rows.append(("import mrtr_server, s", imports))
    print("| what | median | min–max |\n|---|--:|--:|")
    for what, samples in rows:
        print(f"| {what} | {median(samples):.2f} | {min(samples):.2f}–{max(samples):.2f} |")
    print(f"\nOptional packages that the import loads: {extras or 'none'}")


def _microseconds(call: Callable[[], object]) -> list[float]:
    return [1e6 * seconds / CALLS for seconds in timeit.repeat(call, number=CALLS, repeat=REPEATS)]


def _import_seconds() -> tuple[list[float], str]:
    samples: list[float] = []
    extras = ""
    for _ in range(REPEATS + 1):
        done = subprocess.run(
            [sys.executable, "-I", "-c", IMPORT, *EXTRAS], check=True, stdout=subprocess.PIPE, text=True
        )
        seconds, _, extras = done.stdout.strip().partition(" ")
        samples.append(float(seconds))
    return samples[1:], extras  # the first may have had to compile


if __name__ == "__main__":
    main()
