"""What scripts/demo runs: three servers behind a round robin, and a client that needs three rounds; then a task."""

import argparse
import ast
import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import demo_tasks
from demo_fleet import ROOT, DemoFailed, post, running

from examples.round_robin import RoundRobin

REPLICAS = 3
TOOL = "update_work_item"
ARGUMENTS = {"workItemId": 4522, "fields": {"System.State": "Resolved"}}
ANSWERS: list[dict[str, dict[str, Any]]] = [
    {},
    {"resolution": {"resolution": "Duplicate"}},
    {"duplicate_of": {"duplicateOfId": 4301}},
]
EXPECTED = "Bug #4522 resolved as Duplicate of Bug #4301. State set to Resolved and duplicate link created."


async def play(port: int) -> None:
    """Go through the rounds, and say who answered what."""
    state: str | None = None
    served: list[str] = []
    text = ""
    for number, answers in enumerate(ANSWERS, 1):
        params: dict[str, Any] = {"name": TOOL, "arguments": ARGUMENTS}
        if number == 1:
            sent = f"{TOOL}(workItemId=4522, fields={json.dumps(ARGUMENTS['fields'])})"
        else:
            params["inputResponses"] = {k: {"action": "accept", "content": v} for k, v in answers.items()}
            params["requestState"] = state
            sent = f"the same call, with {json.dumps(answers)} and the requestState of round {number - 1}"
        print(f"\nRound {number}\n  client     {sent}")
        message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        who, result = await asyncio.to_thread(post, port, message)
        served.append(who)
        for key, ask in result.get("inputRequests", {}).items():
            print(f"  {who}\n             asks for {key}: {ask['params']['message']}")
        if state := result.get("requestState"):
            print(f"             and hands over its requestState, {len(state)} characters, sealed")
        else:
            text = result["content"][0]["text"]
            print(f"  {who}\n             is done: {text}")
    if text != EXPECTED:
        raise DemoFailed(f"The last reply was to be: {EXPECTED}")
    if len(set(served)) != len(ANSWERS):
        raise DemoFailed(f"The rounds were to be answered by {len(ANSWERS)} processes, but were by {served}")
    print(
        f"\n{len(served)} rounds, {len(served)} processes. None of them kept anything in between:"
        "\nthe answer of round 2 came to round 3 in the requestState."
    )


def curl_lines(url: str) -> str:
    """Return the curl lines of the example, for another address, with the headers shown."""
    docstring = ast.get_docstring(ast.parse((ROOT / "examples" / "work_items.py").read_text("utf-8"))) or ""
    rounds = docstring[docstring.index("Round 1:") :].splitlines()
    lines = [line.removeprefix("    ") if line[:1] in ("", " ") else f"echo; echo '{line}'" for line in rounds]
    return "\n".join(lines).replace("http://127.0.0.1:8000/mcp", url).replace("curl -s ", "curl -si ")


async def demo(serve: bool) -> None:
    """Start everything, play or serve, and end everything."""
    made = subprocess.run(  # noqa: S603, ASYNC221  our own command, before anything else runs
        [Path(sys.executable).with_name("mrtr-server"), "keygen"], check=True, capture_output=True, text=True
    )
    key = made.stdout.strip()
    print("Three servers with one key, from `mrtr-server keygen`, and nothing else in common:")
    async with AsyncExitStack() as stack:
        servers = [running(number, "examples.work_items:app", ROOT, MRTR_KEYS=key) for number in range(1, REPLICAS + 1)]
        replicas = [(await stack.enter_async_context(server)).replica for server in servers]
        front = await RoundRobin(replicas).listen()
        try:
            for each in replicas:
                print(f"  http://127.0.0.1:{each.port}/mcp   {each.name}")
            port = front.sockets[0].getsockname()[1]
            url = f"http://127.0.0.1:{port}/mcp"
            print(f"  {url}   round robin: each request goes to the next of the three")
            if serve:
                print("\nPaste this; X-Served-By says who answered. Ctrl-C ends the servers.")
                print(f"\n{curl_lines(url)}", flush=True)
                await asyncio.Event().wait()
            else:
                await play(port)
        finally:
            front.close()
    if not serve:
        await demo_tasks.demo(key)


async def main(serve: bool) -> int:
    """Run the demo; return the exit code."""
    running = asyncio.current_task()
    assert running is not None  # noqa: S101  we are in it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await demo(serve)
    except asyncio.CancelledError:
        print("\nThe servers have ended.")
        return 0 if serve else 130
    except DemoFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One tool call in three rounds, each answered by another process.")
    parser.add_argument("--serve", action="store_true", help="leave the servers up, with curl lines to try them")
    sys.exit(asyncio.run(main(parser.parse_args().serve)))
