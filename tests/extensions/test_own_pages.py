"""A page that has a drawing of its own draws what its tools ask, and a call that it repeats counts once."""

import pytest
from playwright.sync_api import Frame

from mrtr_server import Apps, Context, MRTRServer

from ..conftest import Serve
from ..support.app_host import ERAS, AppHost, AppHosts, Era
from ..support.serving import wait_until

BOARD = """<!doctype html><html><head><title>Orders</title></head><body><p id="list">nothing yet</p>
<script>
  const list = document.getElementById("list");
  mrtr.on("result", ({ value }) => { list.textContent = value; });
  const cancel = (options) => mrtr.call("cancel", { number: 3 }, options).then(
    ({ value }) => { list.textContent = value; }, ({ message }) => { list.textContent = `not done: ${message}`; });
</script></body></html>"""


def shop(effects: list[str]) -> MRTRServer:
    app = MRTRServer("shop", keys=[bytes(32)], apps=Apps(question=True))
    board = app.ui(lambda: BOARD, name="board")

    @app.tool(ui=board)
    async def orders(ctx: Context, ask: bool = False) -> str:
        """List the orders."""
        if ask:
            await ctx.confirm("Show all?")
        return "two orders"

    @app.tool(ui=board, used_by="app")
    async def cancel(number: int, ctx: Context) -> str:
        """Cancel an order."""
        await ctx.confirm(f"Cancel {number}?")
        effects.append(f"cancelled {number}")
        return f"{number} is cancelled"

    return app


def question_in(host: AppHost) -> Frame:
    """Return the frame in which the page draws a question."""
    found: list[Frame] = []

    def is_there() -> bool:
        host.window.evaluate("1")  # which lets Playwright hear of frames
        found[:] = host.page.child_frames
        return bool(found)

    wait_until(is_there, "the frame of the question")
    return found[0]


@pytest.mark.parametrize("era", ERAS)
class TestAPageOfItsOwn:
    def test_draws_the_question_of_the_tool_that_it_was_drawn_for(
        self, serve: Serve, hosts: AppHosts, era: Era
    ) -> None:
        host = hosts.connect(serve(shop([])).url, era=era, lacks=["serverResources"])
        page = host.show("orders", ask=True)
        question = question_in(host)
        question.get_by_text("Show all?").wait_for()
        assert page.locator("#list").text_content() == "nothing yet"
        question.get_by_role("button", name="Yes").click()
        page.get_by_text("two orders").first.wait_for()

    def test_gets_the_result_of_its_call_when_the_person_has_answered(
        self, serve: Serve, hosts: AppHosts, era: Era
    ) -> None:
        effects: list[str] = []
        host = hosts.connect(serve(shop(effects)).url, era=era)
        page = host.show("orders")
        page.evaluate("void cancel()")
        question = question_in(host)
        question.get_by_role("button", name="Yes").click()
        page.locator("#list", has_text="3 is cancelled").wait_for()
        page.locator("iframe").wait_for(state="detached")
        assert effects == ["cancelled 3"]
        assert host.seen["messages"] == []
        page.evaluate("void cancel()")
        question_in(host).get_by_role("button", name="No").click()
        page.locator("#list", has_text="not done").wait_for()
        assert effects == ["cancelled 3"]
        assert host.errors == []

    def test_repeats_a_call_that_counts_once(self, serve: Serve, hosts: AppHosts, era: Era) -> None:
        effects: list[str] = []
        host = hosts.connect(serve(shop(effects)).url, era=era)
        page = host.show("orders")
        page.evaluate("void cancel({ once: 'a' })")
        question_in(host).get_by_role("button", name="Yes").click()
        page.locator("#list", has_text="3 is cancelled").wait_for()
        page = host.reload()
        page.evaluate("void cancel({ once: 'a' })")
        page.locator("#list", has_text="3 is cancelled").wait_for()
        assert effects == ["cancelled 3"]
