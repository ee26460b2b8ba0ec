"""States that an earlier release sealed open in this one, and the other way round: the format is the same.

The tokens here were sealed by the first release that had tasks, under the key and at the time below.
"""

import pytest
from pydantic import BaseModel
from pydantic_core import from_json

from mrtr_server import Context, Elicit, InputRequired, Inputs, KeyRing, MRTRServer, State
from mrtr_server.crypto.codec import SealedCodec
from mrtr_server.testing import AsyncClient, Clock, yes

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000.0
RING = KeyRing([bytes(range(32))])
ORDER = {"item": "tea"}

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


class Login(BaseModel):
    name: str


def reserve(item: str) -> str:
    raise AssertionError("it has run")


def pay(item: str) -> str:
    PAID.append(item)
    return f"{item} paid"


reserve.__module__ = pay.__module__ = "shop"


@pytest.fixture
def app() -> MRTRServer:
    PAID.clear()
    app = MRTRServer("golden", keys=RING, clock=Clock(NOW))

    @app.tool
    async def order(item: str, ctx: Context) -> str:
        login = await ctx.elicit("Who are you?", Login)
        reserved = await ctx.step(reserve, item)
        await ctx.confirm(f"Pay for {item}, {login.name}?")
        return f"{reserved}, {await ctx.step(pay, item)}"

    @app.tool
    def survey(inputs: Inputs, state: State[int]) -> str | InputRequired:
        login = inputs.get("login", Login)
        if login is None:
            return InputRequired(login=Elicit("Who are you?", Login), state=7)
        return f"{login.name}: {state.value}"

    return app


async def test_an_earlier_state_goes_on_here(app: MRTRServer) -> None:
    flow = AsyncClient(app).flow("order", ORDER)
    flow.state = CONFIRMING
    assert (await flow.send({"confirm": yes})).text == "tea reserved, tea paid"
    flow = AsyncClient(app).flow("survey")
    flow.state = KEEPING
    assert (await flow.send()).text == "ann: 8"


async def test_and_is_redeemed_once_if_it_asks_for_a_confirmation(app: MRTRServer) -> None:
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


async def test_also_where_it_has_more_answers_of_a_key(app: MRTRServer) -> None:
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
