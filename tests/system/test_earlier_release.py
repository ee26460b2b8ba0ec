"""What an earlier release sealed, signed and stored is opened by this one, and the format is the same.

The tokens here were sealed by the first code that had tasks; `golden/release-0.1.0.json` has the rest of 0.1.0: states,
journal, tasks, a record of a redemption, a callback's link and report, and a cursor.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_core import from_json

from mrtr_server import (
    Context,
    InProcessStore,
    KeyRing,
    MRTRServer,
    SealedCodec,
    SignedCodec,
    TaskRow,
)
from mrtr_server.testing import AsyncClient, Clock, accept, replica, yes

from ..support import golden_app
from ..support.golden_app import BASE, DONE, NOW, Login, golden

pytestmark = pytest.mark.anyio

RING = KeyRing([bytes(range(32))])
ORDER = {"item": "tea"}

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "release-0.1.0.json").read_text())

# Asks for a confirmation, after an answer and a step.
CONFIRMING = (
    "AY6s51KSpJZRNHqlrWLlRbME2oVaNVUTrRi_DmV84x5l26TJP_y_LJBWRcEmBS6bDkOb4uYfnZoebOlDBbm0WfapeDcn38tJWcUlKxCQLQ93"
    "G37auGsRSE2VAX55fOsDjQaQWQXryvJgAiqg39jwTQpbr5T1fPDAmEth8rl8sDm5Y3FiqCpG5tPZVr8lCcp6E_Z56zJsA--"
    "h-n9h7BCxyFDJC8IMfYr5xMuqalkTnww7rV6AzA6hJ0VOydihSdB2qSOzs0W1OxvfZHnp24ieb_l7gPJRl0tUMS8y3GhU-"
    "nbERTXalHpi8VOkGk2hyFWilTzE8YoCcwhpDJTCfx-q98RH-"
    "qYkYY6xhwA8EM_BPDKyL57Zqr_Dl7eHU7THpJx7aRx0nAVAHfy8ea_KgFOFFwdrqCoX_NNWTW__4qwP48TrECFZJIQkw6CZnvYX-TTnJcGMI"
    "gfTU7pwE7kxjQMCX7gNYNs5aRKCQE1ZaHCQ5TYddehC5e5u3iDevwdyPGmthiULxhFLBAEeMf9_SEnerShad8o3L550FW2nKkWPfbmP6ydYa"
    "nw9cc6dg25VWxTn1yqc3wN_hM-7hRrMFm0mFq1hCS0hdoSnEp4uqu4uze-"
    "Xp4B-S7EHiURBX_YeHvQyzHH1orFtJ747jYJNRRt9IMpZQT2tNNU_y-l3-mgK5K3_xO_6"
)

# Asks nothing: the handler keeps a state of its own, after an answer.
KEEPING = (
    "AY6s51LHtTBMzkUZIli2VMPukOp1i9rxuzcxQfaLQGWZHHCg7lYJfGD_0LtpcEkoWvXamwOhJwSNLQya8LZLJ_6tHgrx59SEulK8TCA2389o"
    "SG3-x8Iz8C7eoUBSS-pdJI3LAzNfU7MZJGebtyFdIQaKBp3V3KpYL6JLJZX_ymmxb4fmZ6rP5_VxA5XgHQKGkbk_nB_duAjCX-"
    "93aHy_Dpv9GA4moaPPAzk1VZ4T5H9dyDJQmnwKuC6nntgKQ2mZGFbL8_2EmPac2UXMmG39P8zDn5UByuuhKUjUvUryvkkLpGbrHRlZ1Mrhjf"
    "bNgSzFFps9VbLT7lBA4fGmIBEdrREgjKyXMG-L9_1yCQ9mx9hpfAKzcFGz-WZt8IEp_ZTpV4uYUz24zzOvbm1OppYuPhA-Plg-LMS8WO3-"
    "7wb75q_p21-"
    "Fk6K7XOrdf5MAZK0vav34uGXZ8nM0lhgTGqLJosxoxqrmoPQBjBKkO4PuSUC2UW15xUaBfehTzdQCg_LP2WoazxPTMmEnpFa0oa-"
    "LmjNFO4Jx"
)

PAID: list[str] = []


def reserve(item: str) -> str:
    raise AssertionError("it has run")


def pay(item: str) -> str:
    PAID.append(item)
    return f"{item} paid"


reserve.__module__ = pay.__module__ = "shop"


@pytest.fixture
def app() -> MRTRServer:
    PAID.clear()
    app = replica(MRTRServer("golden", keys=RING), clock=Clock(NOW))

    @app.tool
    async def order(item: str, ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        reserved = await ctx.step(reserve, item)
        await ctx.confirm(f"Pay for {item}, {login.name}?")
        return f"{reserved}, {await ctx.step(pay, item)}"

    app.tool(golden_app.survey)
    return app


async def test_an_earlier_state_goes_on_here(app: MRTRServer) -> None:
    flow = AsyncClient(app).flow("order", ORDER)
    flow.state = CONFIRMING
    assert (await flow.send({"confirm": yes})).text == "tea reserved, tea paid"
    flow = AsyncClient(app).flow("survey")
    flow.state = KEEPING
    assert (await flow.send()).text == "ann: 8"


async def test_an_earlier_state_that_asks_for_a_confirmation_is_redeemed_once(app: MRTRServer) -> None:
    flow = AsyncClient(app).flow("order", ORDER)
    flow.state = CONFIRMING
    first = await flow.send({"confirm": yes})
    for _ in range(49):
        assert (await flow.replay(first)).text == "tea reserved, tea paid"
    assert PAID == ["tea"]


async def test_a_state_of_this_release_has_what_the_earlier_one_reads(app: MRTRServer) -> None:
    """It takes the newest answer of each key, and leaves out what it does not know."""
    earlier = from_json(SealedCodec(RING).unseal(CONFIRMING))
    flow = AsyncClient(app).flow("order", ORDER)
    flow.state = CONFIRMING
    await flow.send()  # the confirmation is still open, so it is asked for again
    assert flow.state not in (None, CONFIRMING)
    sealed = from_json(SealedCodec(RING).unseal(str(flow.state)))
    assert sealed == {**earlier, "r": 3, "c": True}


async def test_a_state_with_more_answers_of_a_key_has_what_the_earlier_one_reads(app: MRTRServer) -> None:
    @app.tool
    async def twice(ctx: Context) -> str:
        await ctx.elicit(f"Who are you in round {min(ctx.round, 3)}?", Login, key="who")
        await ctx.confirm("Sure?")
        return "done"

    flow = AsyncClient(app).flow("twice")
    await flow.start()
    for name in ("ann", "bob", "eve"):
        await flow.answer(who={"name": name})
    sealed = from_json(SealedCodec(RING).unseal(str(flow.state)))
    assert sealed["v"] == 1
    (question, raw) = sealed["a"]["who"]
    assert raw == {"action": "accept", "content": {"name": "eve"}}
    assert question.startswith("form.")
    assert [raw["content"]["name"] for _, raw in sealed["e"]["who"]] == ["ann", "bob"]


class Shared(InProcessStore):
    """A store that says it is shared, as the database of a fleet."""

    shared = True


@pytest.fixture
def store() -> Shared:
    DONE.clear()
    return Shared(Clock(NOW))


def flow_of(app: MRTRServer, tool: str, user: str = "ann", **arguments: Any) -> Any:
    headers = {"Host": "shop.example"}
    return AsyncClient(app, token=f"{user}-token", headers=headers, tasks=True, log_level=None).flow(tool, arguments)


class TestStatesOf010:
    @pytest.mark.parametrize("state", ["state", "signed_state"])
    async def test_are_continued_with_their_answers_and_without_their_steps(self, store: Shared, state: str) -> None:
        settings = {"codec": SignedCodec(golden_app.RING)} if state == "signed_state" else {}
        flow = flow_of(golden(store=store, **settings), "order", item="tea")
        flow.state = GOLDEN[state]
        assert (await flow.send({"confirm": yes})).text == "tea reserved, tea paid"
        assert DONE == ["pay 3 for tea"]

    async def test_of_a_pure_function_bring_what_it_kept(self, store: Shared) -> None:
        flow = flow_of(golden(store=store), "survey")
        flow.state = GOLDEN["state_of_a_pure_function"]
        assert (await flow.send({"login": {"name": "Ann"}})).text == "Ann: 7"

    async def test_are_still_their_callers_alone(self, store: Shared) -> None:
        flow = flow_of(golden(store=store), "order", "bob", item="tea")
        flow.state = GOLDEN["state"]
        assert (await flow.send({"confirm": yes})).error.code == -32602
        assert DONE == []

    async def test_are_written_alike_today(self, store: Shared) -> None:
        """Or a server of 0.1.0 beside this one could not continue what begins here."""
        flow = flow_of(golden(store=store), "order", item="tea")
        await flow.start()
        await flow.answer(login={"name": "Ann"})
        today, then = (from_json(SealedCodec(golden_app.RING).unseal(state)) for state in (flow.state, GOLDEN["state"]))
        assert then == GOLDEN["journal"]
        assert {**today, "f": then["f"]} == then, "but for the flow's own id"
        signed = GOLDEN["signed_state"]
        codec = SignedCodec(golden_app.RING)
        assert codec.seal(codec.unseal(signed)) == signed, "the same bytes, signed the same way"


async def test_a_cursor_of_010_is_where_the_list_goes_on(store: Shared) -> None:
    client = AsyncClient(golden(store=store), token="ann-token")
    first = await client.request("tools/list")
    listed = await client.request("tools/list", {"cursor": GOLDEN["cursor"]})
    assert [tool["name"] for tool in first.result["tools"] + listed.result["tools"]] == [
        "order",
        "survey",
        "buy",
        "ship",
    ]


async def test_a_redemption_of_010_is_not_run_again(store: Shared) -> None:
    kept = GOLDEN["redemption"]
    granted = await store.redeem(kept["state"], kept["answers"], lease=30, keep=3600)
    await store.record(kept["state"], granted.token, kept["outcome"].encode())
    flow = flow_of(golden(store=store), "buy", item="tea")
    flow.state = kept["requestState"]
    assert (await flow.send({"confirm": yes})).text == "tea paid"
    assert DONE == []


class TestCallbacksOf010:
    def flow(self, app: MRTRServer) -> Any:
        flow = flow_of(app, "log_in")
        flow.state = GOLDEN["callback"]["requestState"]
        return flow

    async def test_reports_are_found_by_the_flow(self, store: Shared) -> None:
        await store.put(GOLDEN["callback"]["key"], GOLDEN["callback"]["report"].encode(), keep=60)
        assert (await self.flow(golden(store=store)).send({"bank": accept()})).text == "Ann is in"

    async def test_links_are_opened_by_their_person_alone(self, store: Shared) -> None:
        app = golden(store=store)
        link = {"state": GOLDEN["callback"]["link"], "code": "Ann"}
        for user, status in (("bob", 403), ("ann", 200)):
            browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE, cookies={"user": user})
            async with browser:
                assert (await browser.get("/callbacks/bank", params=link)).status_code == status
        assert (await self.flow(app).send({"bank": accept()})).text == "Ann is in"

    async def test_links_are_the_same_today(self, store: Shared) -> None:
        reply = await self.flow(golden(store=store)).send()
        assert reply.asks["bank"].url.partition("state=")[2] == GOLDEN["callback"]["link"]


class TestTasksOf010:
    async def task(self, store: Shared, status: str) -> tuple[MRTRServer, Any]:
        """Put a row of that release into the store; return a server, and the flow of its client."""
        fields = GOLDEN["tasks"][status]
        sealed = {name: fields[name].encode() for name in ("call", "journal", "questions", "outcome")}
        unleased = {"lease": "", "leased_until": 0.0}
        assert await store.add_task(TaskRow(**{**fields, **sealed, **unleased}))
        app = golden(store=store)
        flow = flow_of(app, "ship", item="tea")
        flow.task = fields["id"]
        return app, flow

    async def test_that_work_are_continued_from_their_last_step(self, store: Shared) -> None:
        app, flow = await self.task(store, "working")
        assert (await flow.wait()).asks.keys() == {"login"}
        await flow.answer(login={"name": "Ann"})
        assert (await flow.wait()).text == "tea reserved, tea paid, for Ann"
        assert DONE == ["pay 1 for tea"]
        await app._parts.worker.close()

    async def test_that_ask_take_their_answer(self, store: Shared) -> None:
        app, flow = await self.task(store, "input_required")
        assert (await flow.look()).asks["login"].message == "Who are you?"
        await flow.answer(login={"name": "Ann"})
        assert (await flow.wait()).text == "tea reserved, tea paid, for Ann"
        assert DONE == ["pay 1 for tea"]
        await app._parts.worker.close()

    async def test_that_have_ended_tell_what_came_of_them(self, store: Shared) -> None:
        app, flow = await self.task(store, "completed")
        assert (await flow.look()).text == "tea reserved, tea paid, for Ann"
        assert DONE == []
        await app._parts.worker.close()

    async def test_have_the_fields_that_rows_have_today(self) -> None:
        for fields in GOLDEN["tasks"].values():
            assert fields.keys() <= {*TaskRow._fields}, "a field that has gone needs a way to be read"
