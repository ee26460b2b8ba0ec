"""An effect that must happen once: a payment, confirmed by the person, that no repeated request makes twice.

With `single_use=True` each state is redeemed once: a repeated request gets the reply that was recorded. The step that
pays passes its idempotency key to the payment service. So even a step that was interrupted, and runs again on another
replica, pays once. The payment service of this example is a SQLite file that `PAYMENTS_DB` names (by default
payments.db in the temporary directory).

    uvicorn examples.payments:app

(With several workers or replicas, set `MRTR_KEYS` and `MRTR_DATABASE_URL` for all of them.)

Round 1: the reply asks for a yes.

    state=$(curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 1, "method": "tools/call",
      "params": {"name": "pay", "arguments": {"to": "Ann", "euros": 25}}
    }' | tee /dev/stderr | grep -o '"requestState":"[^"]*"')

Round 2: the payment. Send it as often as you like: the receipt stays the same, and so does the balance. With
`"confirm": false` in it, the state is refused by then.

    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 2, "method": "tools/call",
      "params": {"name": "pay", "arguments": {"to": "Ann", "euros": 25},
        "inputResponses": {"confirm": {"action": "accept", "content": {"confirm": true}}},
        '"$state"'}
    }'
    curl -s http://127.0.0.1:8000/mcp -H 'Content-Type: application/json' -d '{
      "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "balance", "arguments": {"of": "Ann"}}}'
"""

import os
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from mrtr_server import Context, IdempotencyKey, MRTRServer

LEDGER = Path(os.environ.get("PAYMENTS_DB") or Path(tempfile.gettempdir(), "payments.db"))

app = MRTRServer("payments")


class Receipt(BaseModel):
    """What the payment service returns for a payment."""

    number: int
    to: str
    euros: int


def charge(to: str, euros: int, *, idempotency_key: IdempotencyKey = IdempotencyKey()) -> Receipt:
    """Pay, through a service that executes an order once, however often it gets the same key."""
    with _ledger() as ledger:
        order = (idempotency_key, to, euros)
        ledger.execute("INSERT INTO payments (key, payee, euros) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING", order)
        (number,) = ledger.execute("SELECT number FROM payments WHERE key = ?", (idempotency_key,)).fetchone()
    return Receipt(number=number, to=to, euros=euros)


@app.tool(single_use=True)
async def pay(to: str, euros: Annotated[int, Field(ge=1, le=1000)], ctx: Context) -> str:
    """Pay somebody, once the user agrees."""
    await ctx.confirm(f"Pay {euros} € to {to}?")
    receipt = await ctx.step(charge, to, euros)
    return f"Paid {receipt.euros} € to {receipt.to}, receipt {receipt.number}."


@app.tool
def balance(of: str) -> int:
    """Tell how much somebody has got, in euros."""
    with _ledger() as ledger:
        return int(ledger.execute("SELECT COALESCE(SUM(euros), 0) FROM payments WHERE payee = ?", (of,)).fetchone()[0])


@contextmanager
def _ledger() -> Generator[sqlite3.Connection]:
    with closing(sqlite3.connect(LEDGER)) as ledger, ledger:
        ledger.execute("CREATE TABLE IF NOT EXISTS payments (number INTEGER PRIMARY KEY, key UNIQUE, payee, euros)")
        yield ledger
