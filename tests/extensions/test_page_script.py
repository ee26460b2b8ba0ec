"""The script in every page of an app, `window.mrtr`: in Chromium, in a host with the official AppBridge."""

import re
from collections.abc import Callable
from itertools import count as count_up
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Frame
from pydantic import BaseModel

from mrtr_server import AppPage, Context, MRTRServer, ToolError, ToolResult

from ..conftest import Serve
from ..support.app_host import ERAS, AppHost, AppHosts, Era, official_app
from ..support.browser import until_true
from ..support.dev_host import IN_EVERY_HOST, IN_EVERY_HOST_AND_ERA
from ..support.serving import TIMEOUT, wait_until

Open = Callable[..., AppHost]

STATIC = "<!doctype html><html><head><title>Orders</title></head><body style='margin: 0'><p>No orders</p></body></html>"
"""A page without a script of its own."""
SILENT = STATIC.replace("<p>", "<script>0</script><p>")
"""One that has a script, which begins nothing."""
WITH_APP = STATIC.replace(
    "<p>",
    """<script>OFFICIAL</script><script>
    window.app = new App({ name: "orders", version: "1" }, {});
    app.ontoolresult = (result) => (document.title = result.structuredContent.customer);
    </script><p>""",
)
"""One with the official class `App`."""


class Order(BaseModel):
    number: int
    state: str


def application(html: str = STATIC) -> MRTRServer:
    app = MRTRServer("orders", keys=[bytes(32)], docs=True)

    def page() -> str:
        return html.replace("OFFICIAL", official_app() if "OFFICIAL" in html else "")

    board = app.ui(page, name="board")
    add_tools(app, board)
    return app


def add_tools(app: MRTRServer, board: AppPage) -> None:
    @app.tool(ui=board)
    def orders(customer: str) -> dict[str, str]:
        """List orders."""
        return {"customer": customer}

    @app.tool(ui=board, used_by="app")
    def cancel(number: int) -> Order:
        """Cancel an order."""
        if number > 9:
            raise ToolError(f"There is no order {number}.\nSay which.")
        return Order(number=number, state="cancelled")

    @app.tool
    async def remove(ctx: Context) -> str:
        """Remove all orders."""
        await ctx.confirm("Remove all?")
        return "removed"

    @app.tool(ui=board, used_by="model")
    def pay() -> str:
        """Pay, for the model alone."""
        return "paid"

    numbers_given = count_up()

    @app.tool(ui=board, used_by="app")
    def add() -> int:
        """Add an order; return its number."""
        return next(numbers_given)

    @app.tool
    def count() -> int:
        """Count orders."""
        return 3

    @app.tool
    def numbers() -> list[int]:
        """List numbers."""
        return [1, 2]

    @app.tool
    def nothing() -> Order | None:
        """Find nothing."""

    @app.tool
    def found() -> dict[str, int]:
        """Find what looks as if it were wrapped."""
        return {"result": 4}

    @app.tool
    def summed() -> ToolResult:
        """Show a page more than a model."""
        return ToolResult(content=["2 orders"], structured_content=[5, 6], meta={"from": "here"})

    @app.tool
    def words() -> ToolResult:
        """Say two lines."""
        return ToolResult(content=["one", "two"])

    @app.resource("orders://open")
    def open_orders() -> str:
        """The orders."""
        return "3, 4"


@pytest.fixture
def open_host(serve: Serve, hosts: AppHosts) -> Open:
    def connect(html: str = STATIC, **manner: Any) -> AppHost:
        return hosts.connect(serve(application(html)).url, **manner)

    return connect


def heard(page: Frame, event: str) -> Any:
    """Return what a new handler of an event hears."""
    return page.evaluate(
        """([event, limit]) => new Promise((done, fail) => {
            mrtr.on(event, done);
            setTimeout(fail, limit, new Error(`no ${event} was heard`));
        })""",
        [event, TIMEOUT * 1000],
    )


def failure(page: Frame, script: str) -> dict[str, Any]:
    """Return the error that a promise rejects with."""
    found: dict[str, Any] = page.evaluate(
        f"async () => {{ try {{ await {script} }} catch (error) {{ return {{ message: error.message, ...error }} }} }}"
    )
    assert found is not None, f"{script} did not fail"
    return found


class TestCalls:
    @IN_EVERY_HOST_AND_ERA
    def test_a_page_calls_tools_by_the_names_that_they_have_in_its_own_application(
        self, serve: Serve, hosts: AppHosts, era: Era
    ) -> None:
        including = MRTRServer("desk", keys=[bytes(32)], docs=True)
        including.include(application(), prefix="billing")
        host = hosts.connect(serve(including).url, era=era)
        page = host.show("billing_orders", customer="al")
        result = page.evaluate("mrtr.call('cancel', { number: 3 })")
        assert result["value"] == result["structuredContent"] == {"number": 3, "state": "cancelled"}
        assert host.seen["calls"] == [{"name": "billing_cancel", "arguments": {"number": 3}}]
        assert page.evaluate("mrtr.name('cancel')") == "billing_cancel"

    @IN_EVERY_HOST
    def test_a_call_with_an_id_counts_once_however_often_the_page_is_loaded(
        self, serve: Serve, hosts: AppHosts
    ) -> None:
        including = MRTRServer("desk", keys=[bytes(32)], docs=True)
        including.include(application(), prefix="billing")
        host = hosts.connect(serve(including).url)
        page = host.show("billing_orders", customer="al")
        add = "mrtr.call('add', {}, { once: 'a' }).then(({ value }) => value)"
        first = page.evaluate(add)
        assert page.evaluate(add) == host.reload().evaluate(add) == first
        assert host.page.evaluate("mrtr.call('add', {}, { once: 'b' }).then(({ value }) => value)") == first + 1

    @IN_EVERY_HOST_AND_ERA
    def test_the_value_is_what_the_tool_returned_in_every_era(self, open_host: Open, era: Era) -> None:
        page = open_host(era=era).show("orders", customer="al")
        tools = ("count", "numbers", "nothing", "found", "summed", "words")
        found = [page.evaluate(f"mrtr.call('{tool}')")["value"] for tool in tools]
        assert found == [3, [1, 2], None, {"result": 4}, [5, 6], "one\ntwo"]

    @IN_EVERY_HOST_AND_ERA
    def test_a_call_that_fails_rejects_with_the_text_and_the_result(self, open_host: Open, era: Era) -> None:
        page = open_host(era=era).show("orders", customer="al")
        error = failure(page, "mrtr.call('cancel', { number: 10 })")
        assert error["message"] == "There is no order 10.\nSay which."
        assert error["result"]["isError"] is True
        assert page.evaluate("mrtr.call('cancel', { number: 1 }).then(({ value }) => value.number)") == 1

    @IN_EVERY_HOST_AND_ERA
    def test_an_error_of_the_protocol_rejects_with_its_code_and_its_data(self, open_host: Open, era: Era) -> None:
        page = open_host(era=era).show("orders", customer="al")
        error = failure(page, "mrtr.call('remove')")
        assert error["code"] == -32021
        assert "elicitation" in error["data"]["requiredCapabilities"]
        assert error["message"]

    @pytest.mark.parametrize("era", ERAS)
    def test_what_a_tool_asks_then_is_asked_by_the_host(self, open_host: Open, era: Era) -> None:
        host = open_host(era=era, answer={"action": "accept", "content": {"confirm": True}})
        page = host.show("orders", customer="al")
        assert page.evaluate("mrtr.call('remove')")["value"] == "removed"
        assert [asked["message"] for asked in host.seen["asked"]] == ["Remove all?"]

    def test_a_tool_for_the_model_alone_is_refused_by_the_host(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("orders", customer="al")
        assert "not for apps" in failure(page, "mrtr.call('pay')")["message"]
        assert "cancel" not in host.for_model

    @IN_EVERY_HOST
    @pytest.mark.parametrize(
        "lacking", ["serverTools", "serverResources", "message", "updateModelContext", "openLinks"]
    )
    def test_what_a_host_lacks_fails_by_name(self, open_host: Open, lacking: str) -> None:
        script, method = {
            "serverTools": ("mrtr.call('cancel', { number: 3 })", "tools/call"),
            "serverResources": ("mrtr.read('orders://open')", "resources/read"),
            "message": ("mrtr.message('I paid')", "ui/message"),
            "updateModelContext": ("mrtr.tell('2 orders')", "ui/update-model-context"),
            "openLinks": ("mrtr.open('https://example.com/')", "ui/open-link"),
        }[lacking]
        page = open_host(lacks=[lacking]).show("orders", customer="al")
        assert page.evaluate(f"{lacking!r} in mrtr.host") is False
        error = failure(page, script)
        assert error["message"] == f"This host does not support {method}"
        assert error["code"] == -32601


class TestTheHost:
    @IN_EVERY_HOST
    def test_it_takes_messages_contexts_links_modes_and_reads(self, open_host: Open) -> None:
        host = open_host(context={"availableDisplayModes": ["inline", "fullscreen"]})
        page = host.show("orders", customer="al")
        page.evaluate("mrtr.message('I paid')")
        page.evaluate("mrtr.tell('2 orders', { open: 2 })")
        page.evaluate("mrtr.open('https://example.com/pay')")
        assert page.evaluate("mrtr.display('fullscreen')") == "fullscreen"
        assert page.evaluate("mrtr.read('orders://open')")["contents"][0]["text"] == "3, 4"
        seen = host.seen
        assert seen["messages"] == [{"role": "user", "content": [{"type": "text", "text": "I paid"}]}]
        assert seen["contexts"] == [
            {"content": [{"type": "text", "text": "2 orders"}], "structuredContent": {"open": 2}}
        ]
        assert seen["links"] == [{"url": "https://example.com/pay"}]
        assert seen["modes"] == [{"mode": "fullscreen"}]
        assert failure(page, "mrtr.display('pip')")["message"] == "This host can't display a page as pip"

    def test_what_it_refuses_fails(self, open_host: Open) -> None:
        page = open_host(refuses=True).show("orders", customer="al")
        assert failure(page, "mrtr.message('I paid')")["message"] == "The host refused ui/message"
        assert failure(page, "mrtr.open('https://example.com/')")["message"] == "The host refused ui/open-link"

    def test_its_requests_are_answered(self, open_host: Open) -> None:
        host = open_host()
        host.show("orders", customer="al")
        assert host.request("ping") == {}
        assert host.bridge("teardownResource", {}) == {}
        with pytest.raises(Error, match="Method not found"):
            host.request("tools/list")

    def test_one_that_never_answers_is_waited_for_for_a_minute_and_for_a_call_as_long_as_it_takes(
        self, open_host: Open
    ) -> None:
        host = open_host()
        page = host.show("orders", customer="al")
        never = "() => new Promise(() => {})"
        host.window.evaluate(f"() => {{ host.current.onopenlink = host.current.oncalltool = {never} }}")
        page.evaluate(
            """() => {
                window.waits = [], window.ended = [];
                const wait = setTimeout;
                window.setTimeout = (late, wanted) => wait(late, waits.push(wanted));  // at once, instead of a minute
                const note = ({ message }) => ended.push(message);
                mrtr.call("cancel", { number: 3 }).catch(note);
                mrtr.open("https://example.com/").catch(note);
            }"""
        )
        until_true(page, "ended.length > 0")
        assert page.evaluate("ended") == ["No answer to ui/open-link in 60 seconds"]
        assert page.evaluate("waits") == [60_000]
        assert len(host.sent("tools/call")) == 1


class TestEvents:
    def test_a_handler_that_comes_late_gets_the_last_of_its_kind(self, open_host: Open) -> None:
        host = open_host()
        result = host.call("orders", customer="al")
        page = host.mount("orders", {"customer": "al"}, result)
        page.evaluate("mrtr.call('cancel', { number: 3 })")  # by whose answer the events have arrived
        assert heard(page, "input") == {"customer": "al"}
        assert heard(page, "result")["value"] == {"customer": "al"}
        host.bridge("sendToolResult", result | {"structuredContent": {"customer": "bo"}})
        host.request("ping")
        assert [heard(page, "result")["value"] for _ in range(2)] == [{"customer": "bo"}] * 2

    def test_what_was_partial_is_not_replayed_after_the_whole(self, open_host: Open) -> None:
        host = open_host(SILENT)
        page = host.mount("orders", {"customer": "alma"}, wait=False)
        page.evaluate("() => { window.heard = []; mrtr.on('partial', (given) => heard.push(given.customer)) }")
        host.until_handshake()
        host.bridge("sendToolInputPartial", {"arguments": {"customer": "al"}})
        host.bridge("sendToolInput", {"arguments": {"customer": "alma"}})
        host.request("ping")
        assert page.evaluate("heard") == ["al"]
        page.evaluate("mrtr.on('partial', () => heard.push('late'))")
        heard(page, "input")
        assert page.evaluate("heard") == ["al"]

    def test_a_page_that_is_loaded_again_gets_the_same_once_more(self, open_host: Open) -> None:
        host = open_host(drops=["result"])
        host.show("orders", customer="al")
        page = host.reload()
        result = heard(page, "result")
        assert result["value"] == {"customer": "al"}
        assert "_meta" not in result, "this host drops it"
        assert heard(page, "input") == {"customer": "al"}
        assert host.seen["handshakes"] == 2

    def test_a_cancelled_call_is_an_event_with_its_reason(self, open_host: Open) -> None:
        host = open_host()
        page = host.mount("orders", {"customer": "al"})
        host.bridge("sendToolCancelled", {"reason": "the person left"})
        assert heard(page, "cancelled") == {"reason": "the person left"}

    def test_a_handler_that_fails_is_reported_and_the_others_run(self, open_host: Open) -> None:
        host = open_host()
        page = host.mount("orders", {"customer": "al"})
        page.evaluate(
            """() => {
                mrtr.on("result", () => { throw new Error("first") });
                mrtr.on("result", async () => { throw new Error("second") });
                mrtr.on("result", () => { window.ran = true });
            }"""
        )
        host.bridge("sendToolResult", host.call("orders", customer="al"))
        host.request("ping")
        assert page.evaluate("ran") is True
        wait_until(lambda: len(host.errors) == 2, f"both errors: {host.errors}")
        assert [re.findall("first|second", error) for error in host.errors] == [["first"], ["second"]]

    def test_the_host_hears_of_the_end_of_teardown_handlers(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("orders", customer="al")
        page.evaluate(
            """() => {
                mrtr.on("teardown", () => { throw new Error("could not save") });
                mrtr.on("teardown", () => mrtr.call("cancel", { number: 3 }));
            }"""
        )
        assert host.bridge("teardownResource", {}) == {}
        answers = [each["id"] for each in host.seen["wire"] if "result" in each]
        assert answers[-1] != answers[-2] == host.sent("tools/call")[-1]["id"]

    def test_an_unknown_event_is_refused_at_once(self, open_host: Open) -> None:
        page = open_host().show("orders", customer="al")
        assert failure(page, "mrtr.on('results', () => {})")["message"] == (
            '"results" is no event: input, partial, result, cancelled, context, teardown, question'
        )

    def test_a_question_is_answered_by_what_its_handler_returns(self, open_host: Open) -> None:
        answering = SILENT.replace("0</script>", "mrtr.on('question', ({ message }) => ANSWER)</script>")
        for answer, expected in (
            ("Promise.resolve({ action: 'accept', content: { said: message } })", {"said": "Which?"}),
            ("{ throw Error('broken') }", None),
            ("undefined", None),
        ):
            host = open_host(answering.replace("ANSWER", answer))
            host.mount("orders", {"customer": "al"})
            assert "elicitation" in host.sent("ui/initialize")[0]["params"]["appCapabilities"]
            form = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
            if expected is None:
                with pytest.raises(Error, match="Method not found"):  # so that the host draws it by itself
                    host.request("elicitation/create", form)
            else:
                assert host.request("elicitation/create", form) == {"action": "accept", "content": expected}

    def test_a_page_that_answers_no_question_does_not_say_that_it_would(self, open_host: Open) -> None:
        host = open_host(SILENT.replace("0</script>", "mrtr.on('result', () => {})</script>"))
        host.mount("orders", {"customer": "al"})
        assert not host.sent("ui/initialize")[0]["params"]["appCapabilities"].get("elicitation")
        with pytest.raises(Error, match="Method not found"):
            host.request("elicitation/create", {"message": "Which?"})


class TestTheHandshake:
    def test_it_is_made_once_at_the_first_use(self, open_host: Open) -> None:
        host = open_host(SILENT)
        page = host.mount("orders", {"customer": "al"}, wait=False)
        assert page.evaluate("mrtr.name('cancel')") == "cancel"
        assert page.evaluate("mrtr.context") == {}
        assert host.sent("ui/initialize") == []
        page.evaluate(
            "Promise.all([mrtr.ready, mrtr.on('result', () => {}), mrtr.call('cancel', { number: 3 }), mrtr.ready])"
        )
        (begun,) = host.sent("ui/initialize")
        assert begun["params"]["protocolVersion"] == "2026-01-26"
        assert begun["params"]["appInfo"]["name"] == "Orders"
        assert [each["method"] for each in host.seen["wire"] if each["from"] == "page" and "id" in each] == [
            "ui/initialize",
            "tools/call",
        ]
        assert host.seen["handshakes"] == 1

    def test_a_page_without_a_script_makes_it_by_itself(self, open_host: Open) -> None:
        host = open_host(context={"theme": "dark"})
        page = host.mount("orders", {"customer": "al"})
        assert page.evaluate("mrtr.context.theme") == "dark"
        assert host.until("sizes")

    def test_a_page_that_no_host_shows_says_so(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("orders", customer="al")
        html = page.content()
        alone = host.window.context.new_page()
        alone.set_content(html)
        assert failure(alone.main_frame, "mrtr.call('cancel')")["message"] == "No host shows this page"


class TestAnOfficialApp:
    def test_it_has_made_the_handshake_and_both_get_what_comes(self, open_host: Open) -> None:
        host = open_host(WITH_APP, context={"theme": "dark", "availableDisplayModes": ["inline"]})
        page = host.mount("orders", {"customer": "al"}, host.call("orders", customer="al"), wait=False)
        page.evaluate("app.connect()")
        host.until_handshake()
        assert heard(page, "result")["value"] == {"customer": "al"}
        until_true(page, "document.title === 'al'")
        numbers = page.evaluate(
            """async () => {
                const cancel = (number) => [
                    mrtr.call("cancel", { number }),
                    app.callServerTool({ name: mrtr.name("cancel"), arguments: { number: number + 1 } }),
                ];
                const results = await Promise.all([...cancel(1), ...cancel(3)]);
                return results.map((result) => result.structuredContent.number);
            }"""
        )
        assert numbers == [1, 2, 3, 4]
        assert page.evaluate("mrtr.context.theme") == "dark"
        assert page.evaluate("'serverTools' in mrtr.host") is True
        assert len(host.sent("ui/initialize")) == 1
        assert host.seen["handshakes"] == 1

    def test_it_alone_answers_the_host_reports_the_size_and_draws_the_theme(self, open_host: Open) -> None:
        host = open_host(WITH_APP, context={"theme": "dark"})
        page = host.mount("orders", {"customer": "al"}, wait=False)
        page.evaluate("app.connect().then(() => mrtr.ready)")
        host.until("sizes")
        before = len(host.seen["sizes"])
        page.evaluate("document.body.style.height = '500px'")
        host.until("sizes", before + 1)
        host.request("ping")
        with pytest.raises(Error, match="Method not found"):
            host.request("tools/list")
        assert page.evaluate("mrtr.call('cancel', { number: 3 }).then(({ value }) => value.number)") == 3
        answers = [each["id"] for each in host.seen["wire"] if each["from"] == "page" and "method" not in each]
        assert len(answers) == len(set(answers)) == 2
        assert len(host.seen["sizes"]) == before + 1
        assert page.evaluate("document.documentElement.dataset.theme ?? ''") == ""

    def test_a_handshake_that_it_makes_at_the_same_time_is_used(self, open_host: Open) -> None:
        host = open_host(WITH_APP)
        page = host.mount("orders", {"customer": "al"}, wait=False)
        called = "app.connect(), mrtr.call('cancel', { number: 3 }).then(({ value }) => value.number)"
        assert page.evaluate(called) == 3
        assert page.evaluate("app.callServerTool({ name: 'cancel', arguments: { number: 4 } })")["structuredContent"]
        assert host.seen["handshakes"] == 1
        methods = [each["method"] for each in host.seen["wire"] if each["from"] == "page" and "method" in each]
        assert methods.index("ui/notifications/initialized") < methods.index("tools/call")

    def test_one_that_connects_later_takes_over(self, open_host: Open) -> None:
        host = open_host(WITH_APP)
        page = host.mount("orders", {"customer": "al"}, wait=False)
        page.evaluate("mrtr.ready")
        host.until("sizes")
        page.evaluate("app.connect()")
        host.request("ping")
        page.evaluate("document.body.style.height = '500px'")
        wait_until(lambda: host.seen["sizes"][-1]["height"] >= 500, "the size")
        page.evaluate("mrtr.call('cancel', { number: 3 })")
        assert len([each for each in host.seen["sizes"] if each["height"] >= 500]) == 1
        answers = [each for each in host.seen["wire"] if each["from"] == "page" and "method" not in each]
        assert len(answers) == 1


class TestTheDocument:
    def test_it_has_the_host_s_theme_variables_and_fonts_and_follows_them(self, open_host: Open) -> None:
        styles = {
            "variables": {"--color-text-primary": "rgb(1, 2, 3)", "--font-sans": "Georgia"},
            "css": {"fonts": "@font-face { font-family: Georgia; src: local('Georgia') }"},
        }
        host = open_host(context={"theme": "dark", "styles": styles, "locale": "de"})
        page = host.show("orders", customer="al")
        page.evaluate("mrtr.ready")
        drawn = """() => {
            const root = document.documentElement, style = getComputedStyle(root);
            const fonts = [...document.querySelectorAll("style")].map((each) => each.textContent).join();
            return [root.dataset.theme, style.colorScheme, style.getPropertyValue("--color-text-primary"), fonts];
        }"""
        assert page.evaluate(drawn) == ["dark", "dark", "rgb(1, 2, 3)", styles["css"]["fonts"]]
        page.evaluate("() => { window.heard = []; mrtr.on('context', (context) => heard.push(context)) }")
        changed = {"variables": {"--color-text-primary": "rgb(4, 5, 6)", "display": "none"}}
        host.bridge("sendHostContextChange", {"theme": "light", "styles": changed})
        host.request("ping")
        assert page.evaluate(drawn) == ["light", "light", "rgb(4, 5, 6)", ""]
        assert page.evaluate("document.documentElement.style.display") == "", "nothing but variables"
        assert [(each["theme"], each["locale"]) for each in page.evaluate("heard")] == [("dark", "de"), ("light", "de")]
        assert page.evaluate("mrtr.context.locale") == "de"
        assert host.errors == []

    @IN_EVERY_HOST
    @pytest.mark.parametrize("style", ["", "<style>html, body { height: 100% }</style>"])
    def test_its_size_is_reported_as_it_grows_and_shrinks(self, open_host: Open, style: str) -> None:
        host = open_host(STATIC.replace("</head>", f"{style}</head>"), width=600)
        page = host.show("orders", customer="al")

        def settle(script: str, height: int) -> None:
            page.evaluate(script)
            wait_until(lambda: host.seen["sizes"][-1:] == [{"width": 600, "height": height}], f"{height} pixels")

        settle("document.body.innerHTML = '<div style=\"height: 200px\"></div>'", 200)
        settle("document.body.firstChild.style.height = '750px'", 750)
        settle("document.body.firstChild.style.height = '90.5px'", 91)
        assert all(size != after for size, after in pairwise(host.seen["sizes"])), "each is reported once"


class TestItsPlace:
    @pytest.mark.parametrize(
        "html",
        [
            "<!doctype html><html lang=en><HEAD id='h'>{}</HEAD>",
            "<!-- by us, see <head> --><!doctype html> <!-- <html> --> <html>{}<body>",
            "\n<!DOCTYPE html>\n{}<script>window.text = '<head>'</script>",
            "<header>Orders</header>{}",
            "{}",
        ],
    )
    def test_it_runs_before_all_scripts_of_a_page_and_changes_nothing_else(
        self, open_host: Open, browser_of_hosts: Browser, html: str
    ) -> None:
        whole = html.format("<title>Orders</title><script>window.there = typeof mrtr</script>")
        host = open_host(whole)
        host.mount("orders", {"customer": "al"}, wait=False)
        (ready,) = host.sent("ui/notifications/sandbox-resource-ready", by="host")
        page = browser_of_hosts.new_page()
        about = "[document.compatMode, document.title, document.head.id, window.text ?? '', document.scripts.length]"
        page.set_content(whole)
        *before, scripts = page.evaluate(about)
        page.set_content(ready["params"]["html"])
        assert page.evaluate("there") == "object"
        assert page.evaluate(about) == [*before, scripts + 1]
        page.close()


class TestSafety:
    def test_only_what_the_host_sends_counts(self, open_host: Open) -> None:
        host = open_host()
        page = host.show("orders", customer="al")
        page.evaluate("() => { window.heard = []; mrtr.on('cancelled', ({ reason }) => heard.push(reason)) }")
        forged = '{ jsonrpc: "2.0", method: "ui/notifications/tool-cancelled", params: { reason: "forged" } }'
        page.evaluate(f"postMessage({forged}, '*')")
        host.window.evaluate(f"frames[0].frames[0].postMessage({forged}, '*')")
        page.evaluate(
            f"""() => {{
                const frame = document.createElement("iframe");
                frame.srcdoc = `<script>parent.postMessage({forged}, "*")</script>`;
                document.body.append(frame);
                return new Promise((done) => (frame.onload = done));
            }}"""
        )
        for broken in ("null", "'text'", "[]", "{ jsonrpc: '2.0' }", "{ jsonrpc: '2.0', id: 'mrtr-7', result: 1 }"):
            host.window.frames[1].evaluate(f"frames[0].postMessage({broken}, '*')")
        host.bridge("sendToolCancelled", {"reason": "real"})
        host.request("ping")
        until_true(page, "heard.length > 0")
        assert page.evaluate("heard") == ["real"]
        assert host.errors == []

    def test_it_needs_nothing_that_a_strict_sandbox_forbids(self, open_host: Open) -> None:
        host = open_host(inner="allow-scripts")
        page = host.show("orders", customer="al")
        assert page.evaluate("origin") == "null"
        assert page.evaluate("mrtr.call('cancel', { number: 3 })")["value"]["number"] == 3
        assert host.errors == []
        with pytest.raises(Error, match="sandboxed"):
            page.evaluate("localStorage")
        with pytest.raises(Error, match="Failed to fetch"):
            page.evaluate("fetch('https://example.com/')")
        wait_until(lambda: "Content Security Policy" in "".join(host.errors), "the violation of the policy")

    def test_it_is_small_and_can_not_be_replaced(self, open_host: Open) -> None:
        page = open_host().show("orders", customer="al")
        assert len(page.evaluate("document.scripts[0].textContent").encode()) < 6000
        page.evaluate("() => { window.mrtr = null; delete window.mrtr; mrtr.call = null }")
        assert page.evaluate("mrtr.call('cancel', { number: 3 })")["value"]["number"] == 3
