"""What an example's docstring says to type is typed."""

import json
import shutil
import subprocess
from types import ModuleType
from typing import Any

import pytest

from ..support.serving import TIMEOUT

SHELL = shutil.which("bash") or "/bin/sh"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl to try the lines with")


def commands(module: ModuleType) -> tuple[list[str], str]:
    """Return the uvicorn lines of a module's docstring, and all others from the first round, or step, on."""
    text = module.__doc__ or ""
    first = text.index("Step 1" if "Step 1" in text else "Round 1")
    indented = [line[4:] for line in text[:first].splitlines() if line.startswith("    ")]
    rounds = [line[4:] for line in text[first:].splitlines() if line.startswith("    ")]
    return [line for line in indented if line.startswith("uvicorn ")], "\n".join(rounds)


def paste(script: str) -> tuple[str, str]:
    """Run lines in a shell; return what they wrote to the output and to the error stream."""
    done = subprocess.run([SHELL], input=script, capture_output=True, text=True, timeout=2 * TIMEOUT)
    assert done.returncode == 0, done
    return done.stdout, done.stderr


def replies(module: ModuleType, url: str) -> list[dict[str, Any]]:
    """Type the lines of a module's docstring at the server at `url`; return the replies, the last one last."""
    started, rounds = commands(module)
    assert started == [f"uvicorn {module.__name__}:app"]
    assert "http://127.0.0.1:8000/mcp" in rounds
    return shown_replies(*paste(rounds.replace("http://127.0.0.1:8000/mcp", url)))


def shown_replies(output: str, shown: str) -> list[dict[str, Any]]:
    """Return the replies among what lines wrote to the output and to the error stream, the last one last."""
    decode = json.JSONDecoder().raw_decode
    found: list[dict[str, Any]] = []
    for text in (shown, output):  # those of all rounds but the last are shown on the way
        while text := text.strip():
            reply, end = decode(text)
            found.append(reply)
            text = text[end:]
    return found
