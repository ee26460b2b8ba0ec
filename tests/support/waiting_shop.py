"""A shop whose orders wait for a manager, for tests of waits for somebody else."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BaseModel

from mrtr_server import Context, MRTRServer, Person, Principal, Task, Ticket, Wait
from mrtr_server.testing import AsyncClient, replica, yes

from .flows import AsyncFlow
from .serving import TIMEOUT

SCOPE = "orders:approve"
MANAGER = Principal("max")
DAY = 86_400.0


class Order(BaseModel):
    item: str
    price: int


class Decision(BaseModel):
    approved: bool
    reason: str = ""


@dataclass
class Shop:
    """An application whose orders wait for a manager."""

    app: MRTRServer
    approval: Wait[Order, Decision]
    price: int = 900
    ordered: list[str] = field(default_factory=list)

    async def tickets(self, by: Principal = MANAGER, *, least: int = 1, **more: Any) -> list[Ticket[Order, Decision]]:
        """Return the tickets of somebody, when there are so many."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                page = await self.app.tickets(self.approval, by=by, scopes=[SCOPE], **more)
                if len(page.tickets) >= least:
                    return page.tickets
                await asyncio.sleep(0.01)

    async def changed(self, before: str) -> Ticket[Order, Decision]:
        """Return the newest ticket, when it is another one than before."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                (newest, *_) = await self.tickets()
                if newest.until != getattr(before, "until", None):
                    return newest
                await asyncio.sleep(0.01)

    async def begin(self, client: AsyncClient | None = None, item: str = "desk") -> tuple[AsyncFlow, str]:
        """Begin to buy something, and return the flow with the ticket that it waits under."""
        before = len(await self.tickets(least=0))
        flow = (client or AsyncClient(self.app, user="bea", tasks=True)).flow("buy", item=item)
        await flow.start()
        return flow, (await self.tickets(least=before + 1))[0]

    async def told(self, client: AsyncClient, ask: str) -> str:
        """Return what a model is told of a call that has waited, when that is over."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                if not (text := (await client.call("mrtr_result", ask=ask)).text).startswith("mrtr-ask"):
                    return text
                await asyncio.sleep(0.01)

    def manager(self, app: MRTRServer | None = None, user: str = "max", scopes: tuple[str, ...] = (SCOPE,)) -> Any:
        return AsyncClient(app or self.app, user=user, scopes=scopes)

    async def approve(self, ticket: str, **as_whom: Any) -> Any:
        return await self.manager(**as_whom).call("approve", ticket=ticket, answers={"confirm": yes})

    async def refusal(self, ticket: str, **as_whom: Any) -> str:
        """Return why somebody may not even look at a ticket."""
        return str((await self.manager(**as_whom).call("approve", ticket=ticket)).failure)


def make_shop(store: Any, **options: Any) -> Shop:
    settings = {name: options.pop(name) for name in ("clock",) if name in options}
    app = MRTRServer("shop", store=store, keys=[bytes(32)])
    approval = app.wait("approval", **{"about": Order, "answer": Decision, "who": [SCOPE], **options})
    shop = Shop(app, approval)

    def order(item: str, price: int) -> str:
        shop.ordered.append(item)
        return f"ordered {item} for {price}"

    @app.tool(task=Task("optional", poll=0.05))
    async def buy(item: str, ctx: Context) -> str:
        about = Order(item=item, price=shop.price)
        decision = await ctx.wait_for(approval, about, answer_within=3 * DAY)
        return await ctx.step(order, item, about.price) if decision.approved else f"refused: {decision.reason}"

    @app.tool
    async def approve(ticket: Annotated[Ticket[Order, Decision], approval], ctx: Context) -> str:
        await ctx.confirm(f"Approve {ticket.about.item} for {ticket.about.price}?")
        await ctx.answer(ticket, Decision(approved=True))
        return "approved"

    @app.tool
    async def refuse(ticket: Annotated[Ticket[Order, Decision], approval], reason: str, ctx: Context) -> str:
        await ctx.answer(ticket, Decision(approved=False, reason=reason))
        return "refused"

    @app.tool
    async def pass_on(ticket: Annotated[Ticket[Order, Decision], approval], to: str, ctx: Context) -> str:
        await ctx.pass_on(ticket, Person(Principal(to)))
        return "passed on"

    if settings:
        shop.app = replica(app, **settings)
    return shop
