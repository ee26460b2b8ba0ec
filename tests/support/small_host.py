"""A host as small as can be: it calls tools for a model, and asks the person in a terminal, field by field.

`python small_host.py MODEL URL MANNER [PROMPT]` draws what `CodexFields` of scripts/hosts_hands.py reads. With a
prompt, nobody is asked. Its manner is `good`, `hasty` (it accepts for the person), `curt` (it draws no descriptions) or
`stuck`.
"""

import asyncio
import json
import os
import sys
import time
import tty
from typing import Any, Literal

import httpx

from mrtr_server.client import Client, ClientError, Form

MODEL, URL, MANNER, *PROMPT = sys.argv[1:]
said: list[dict[str, Any]] = []


def show(*lines: str) -> None:
    sys.stdout.write("\x1b[2J\x1b[H" + "\r\n".join(lines) + "\r\n")
    sys.stdout.flush()


def choose(heading: list[str], choices: list[str]) -> str:
    at = 0
    while True:
        show(
            *heading, *(f"  {'›' if number == at else ' '} {number + 1}. {each}" for number, each in enumerate(choices))
        )
        match os.read(0, 8):
            case b"\r":
                return choices[at]
            case b"\x1b[A" | b"\x1b[B" as arrow:
                at = (at + (1 if arrow.endswith(b"B") else -1)) % len(choices)
            case b"\x1b":
                raise KeyboardInterrupt


def write(heading: list[str], empty: str) -> str:
    text = ""
    while True:
        show(*heading, f"  › {text or empty}")
        match os.read(0, 1).decode():
            case "\r":
                return text
            case "\x7f":
                text = text[:-1]
            case key:
                text += key


def fill(form: Form) -> dict[str, Any] | Literal["decline", "cancel"]:
    """Ask the person, or answer for them."""
    if PROMPT or any(field["type"] == "array" for field in form.fields.values()):
        return "decline"
    if MANNER == "hasty":
        return {name: True if field["type"] == "boolean" else "red" for name, field in form.fields.items()}
    answers: dict[str, Any] = {}
    try:
        for name, field in form.fields.items():
            description = "" if MANNER == "curt" else field.get("description", "")
            heading = [form.message, "", f"  {field.get('title', name)}", f"  {description}"]
            if field["type"] == "boolean":
                answers[name] = choose(heading, ["False", "True"]) == "True"
            else:
                choices = field.get("enum", ())
                answers[name] = choose(heading, choices) if choices else write(heading, "Type your answer")
    except KeyboardInterrupt:
        return "cancel"
    return answers


async def follow(prompt: str) -> str:
    """Let the model do what the person says; return what it says in the end."""
    said.append({"role": "user", "content": prompt})
    async with Client(URL, on_elicit=fill) as client, httpx.AsyncClient(trust_env=False) as model:
        tools = [{"type": "function", "function": {"name": f"shop_{tool.name}"}} for tool in await client.list_tools()]
        while True:
            body = {"model": "any", "messages": said, "tools": tools}
            reply = (await model.post(f"{MODEL}/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            said.append(reply)
            if "tool_calls" not in reply:
                return str(reply["content"])
            (call,) = reply["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            try:
                result = (await client.call(call["function"]["name"].removeprefix("shop_"), **arguments)).text
            except ClientError as error:
                result = str(error)
            said.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    if PROMPT:
        print(asyncio.run(follow(PROMPT[0])))
        sys.exit()
    tty.setraw(0)
    if MANNER == "stuck":
        with open(os.environ["HOME"] + "/../process", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    answer = "Welcome"
    while True:
        answer = asyncio.run(follow(write([answer], "Type your prompt")))
