r"""An audit trail: a line of JSON for each round of a call, and in it nothing that anybody wrote.

A line says when, who, which tool, which questions were answered and how, how the round ended, and what the server's log
calls a failure. The rounds of one call have one `flow`.

    uvicorn examples.audit:app

(The lines go to standard error, or to the end of the file in `AUDIT_FILE`. With `AUDIT_KEY`, a line has a digest of the
caller in place of the name: only who has the key can tell whose it is.)

Round 1: the tool asks for a yes.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer ann-token' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "pay", "arguments": {"to": "Bo", "euros": 25}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the yes. The trail has two lines then: `"ended": "asked"`, and
`"answers": {"confirm": "accept"}, "ended": "completed"`.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' \
      -H 'Authorization: Bearer ann-token' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "pay", "arguments": {"to": "Bo", "euros": 25},
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        '"$state"'}
    }'
"""

import hmac
import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import cast

from mrtr_server import BearerTokens, Caller, CallInfo, CallNext, Context, MRTRServer, ToolError

app = MRTRServer("audited", auth=BearerTokens({"ann-token": "ann", "bo-token": "bo"}))

KEY = os.environ.get("AUDIT_KEY", "")
FILE = os.environ.get("AUDIT_FILE", "")

trail = logging.getLogger("audit")
trail.setLevel(logging.INFO)
trail.propagate = False  # or the lines would be in the log, too
# It appends, and begins a new file when another program has moved the old one away.
trail.addHandler(WatchedFileHandler(FILE) if FILE else logging.StreamHandler())


def named(caller: Caller) -> str | None:
    """Return who calls, as the trail names them."""
    if caller.principal is None:
        return None
    who = json.dumps(caller.principal.person)
    return hmac.digest(KEY.encode(), who.encode(), "sha256").hex()[:32] if KEY else caller.principal.subject


def action(answer: object) -> str:
    """Return whether an answer is a yes or a no, and nothing else of it."""
    said: object = cast("dict[str, object]", answer).get("action") if isinstance(answer, dict) else None
    return str(said) if said in ("accept", "decline", "cancel") else "answered"


@app.around(sees_answers=True)
async def audit(call: CallInfo, call_next: CallNext) -> None:
    """Write a line when a round has ended."""
    given = dict(call.answers or {})
    line = {"when": datetime.now(UTC).isoformat(), "who": named(call.caller), "what": call.name, "task": call.is_task}
    try:
        ended = await call_next(call)
    except BaseException as error:  # refused, cancelled, or no result can say what went wrong
        trail.info(json.dumps({**line, "ended": type(error).__name__}))
        raise
    # Those to what was asked: a client may send others. A task's answers come with other requests.
    answers = {key: action(given[key]) for key in ended.answered or {} if key in given}
    how = {"flow": ended.flow, "round": ended.round, "answers": answers, "ended": ended.outcome}
    trail.info(json.dumps({**line, **how, "reference": ended.reference}))


@app.tool
async def pay(to: str, euros: int, ctx: Context) -> str:
    """Pay somebody."""
    if euros > 1000:
        raise ToolError("At most 1000 euros at a time.")
    await ctx.confirm(f"Pay {euros} € to {to}?")
    return f"Paid {euros} € to {to}."
