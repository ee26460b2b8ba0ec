"""A failure in the log: the author's calls first, ours and the libraries' in one line."""

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import currentframe
from pathlib import Path
from typing import Annotated, Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from mrtr_server import Context, Depends, InProcessStore, KeyRing, MRTRServer, SetupError
from mrtr_server.documentation import help_for
from mrtr_server.logs.failures import format_failure
from mrtr_server.testing import Client, Reply

from ..support.models import Login

HERE = f'File "{__file__}", line'


def line() -> int:
    """The line that this is called in."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def look_up(key: str) -> str:
    return {"a": "b"}[key]


async def look_up_soon(key: str) -> str:
    await asyncio.sleep(0)
    return look_up(key)


@pytest.fixture
def app() -> MRTRServer:
    return MRTRServer("failing", keys=[bytes(32)])


def files(reply: Reply) -> list[str]:
    """The files of the calls that a log shows."""
    return [each.split('"')[1] for each in reply.log.text.splitlines() if each.lstrip(" |").startswith('File "')]


class TestOnlyTheAuthorsCallsAreShown:
    def test_of_a_plain_function(self, app: MRTRServer) -> None:
        @app.tool
        def divide(by: int) -> int:
            return 1 // by

        failed = Client(app).call("divide", by=0)
        lines = failed.log.text.splitlines()
        assert "failed (reference" in lines[0]
        assert lines[1] == "Traceback (most recent call last):"
        assert lines[2] == f"  {HERE} {divide.__code__.co_firstlineno + 2}, in divide"
        assert lines[3] == "    return 1 // by"
        assert lines[-2].startswith("  (")
        assert lines[-2].endswith("calls in mrtr_server left out)")
        assert lines[-1] == "ZeroDivisionError: integer division or modulo by zero"
        assert len(failed.log.text.splitlines()) <= 7  # with the marks under the line

    @pytest.mark.parametrize("function", [look_up, look_up_soon])
    def test_of_a_step_and_of_what_led_to_it(self, app: MRTRServer, function: Any) -> None:
        @app.tool
        async def find(ctx: Context) -> str:
            try:
                return str(await ctx.step(function, "z"))
            except KeyError as error:
                raise ValueError("not there") from error

        text = (failed := Client(app).call("find")).log.text
        assert set(files(failed)) == {__file__}
        assert text.index("in look_up") < text.index("KeyError: 'z'") < text.index("The above exception was the direct")
        assert text.endswith("ValueError: not there")
        assert text.count(" left out)") == 2

    def test_of_exceptions_in_a_group(self, app: MRTRServer) -> None:
        @app.tool
        async def both() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(look_up_soon("y"))
                group.create_task(look_up_soon("z"))

        failed = Client(app).call("both")
        assert set(files(failed)) == {__file__}
        assert "KeyError: 'y'" in failed.log
        assert "KeyError: 'z'" in failed.log

    def test_with_where_a_library_raised(self, app: MRTRServer) -> None:
        @app.tool
        def wrong() -> str:
            return Login.model_validate({"name": 3}).name

        failed = Client(app).call("wrong")
        assert files(failed) == [__file__]
        assert "pydantic left out; raised in pydantic/main.py, line " in failed.log

    def test_of_prompts_resources_and_dependencies(self, app: MRTRServer) -> None:
        def staff() -> str:
            return look_up("z")

        @app.prompt
        def greet() -> str:
            return look_up("z")

        @app.resource("a://b")
        async def read() -> str:
            return await look_up_soon("z")

        @app.tool
        def work(by: Annotated[str, Depends(staff)]) -> str:
            return by

        client = Client(app)
        for failed in (client.get_prompt("greet"), client.read("a://b"), client.call("work")):
            assert set(files(failed)) == {__file__}
            assert "KeyError: 'z'" in failed.log

    def test_of_tasks_callbacks_and_the_lifespan(self, caplog: pytest.LogCaptureFixture) -> None:
        @asynccontextmanager
        async def life(app: MRTRServer) -> AsyncIterator[None]:
            yield
            look_up("z")

        app = MRTRServer("failing", keys=[bytes(32)], store=InProcessStore(), lifespan=life)

        @app.callback("back")
        def back(request: Request) -> str:
            return look_up("y")

        @app.tool
        async def login(ctx: Context) -> str:
            return await ctx.elicit_url("Log in", callback=back)

        @app.tool(task="optional")
        async def long(ctx: Context) -> str:
            return look_up("x")

        client = Client(app, tasks=True)
        client.call("long")
        url = client.flow("login").start().asks["back"].url
        assert TestClient(app, base_url="http://127.0.0.1").get(url).status_code == 500
        with pytest.raises(AssertionError, match="shutdown failed"), client:
            pass
        shown = [record.exc_text for record in caplog.records if record.exc_info]
        assert len(shown) == 3
        for text, key in zip(shown, "xyz", strict=True):
            assert text is not None
            assert text.endswith(f"KeyError: '{key}'")
            assert {each.split('"')[1] for each in text.splitlines() if each.startswith('  File "')} == {__file__}

    def test_of_an_application_that_is_installed(
        self, app: MRTRServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, code in {
            "shop_app": "from shop_stock import helper\nimport other_library\ndef check():\n    return helper()\n",
            "shop_stock": "import other_library\ndef helper():\n    return other_library.fail()\n",
            "other_library": "def fail():\n    raise OSError('away')\n",
        }.items():
            (tmp_path / "site-packages" / name).mkdir(parents=True)
            (tmp_path / "site-packages" / name / "__init__.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
        try:
            app.tool(importlib.import_module("shop_app").check)
            failed = Client(app).call("check")
        finally:
            for name in ("shop_app", "shop_stock", "other_library"):
                sys.modules.pop(name, None)
        assert [Path(file).parent.name for file in files(failed)] == ["shop_app"]
        assert "shop_stock, other_library left out; raised in other_library/__init__.py, line 2, in fail" in failed.log

    @pytest.mark.parametrize("where", ["async callback", "url="])
    def test_of_a_callback_or_url_function_that_is_installed(
        self, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        package = tmp_path / "site-packages" / "shop_app"
        package.mkdir(parents=True)
        code = "async def back(request):\n    raise OSError('away')\ndef url(back):\n    raise OSError('away')\n"
        (package / "__init__.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
        app = MRTRServer("failing", keys=[bytes(32)])
        try:
            shop = importlib.import_module("shop_app")
            callback = app.callback("back")(shop.back)

            @app.tool
            async def login(ctx: Context) -> str:
                return str(await ctx.elicit_url("Log in", shop.url if where == "url=" else None, callback=callback))

            started = Client(app).flow("login").start()
            if where == "url=":
                text = str(started.log.text)
            else:
                with TestClient(app, base_url="http://127.0.0.1") as browser:
                    assert browser.get(started.asks["back"].url).status_code == 500
                text = str(next(record.exc_text for record in caplog.records if record.exc_info))
        finally:
            sys.modules.pop("shop_app", None)
        assert f'File "{package / "__init__.py"}", line {4 if where == "url=" else 2}' in text
        assert "in mrtr_server left out" in text
        assert "shop_app left out" not in text


class TestNothingElseIsLost:
    def test_a_failure_in_which_no_call_is_the_authors_is_shown_whole(self) -> None:
        with pytest.raises(SetupError) as raised:
            KeyRing([])
        inside = raised.value.with_traceback(raised.tb.tb_next)
        assert "keys.py" in format_failure(inside)
        assert "left out" not in format_failure(inside)

    def test_a_record_keeps_its_exception_for_whoever_collects_them(self, app: MRTRServer) -> None:
        @app.tool
        def divide(by: int) -> int:
            return 1 // by

        (record,) = Client(app).call("divide", by=0).log.records
        assert record.exc_info is not None
        assert isinstance(record.exc_info[1], ZeroDivisionError)

    def test_what_other_code_logs_is_not_touched(self, caplog: pytest.LogCaptureFixture) -> None:
        try:
            KeyRing([])
        except SetupError:
            logging.getLogger("elsewhere").exception("failed")
        assert "keys.py" in caplog.text


class TestAMistakeInAFlowNamesItsLine:
    @pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
    @pytest.mark.parametrize("forgotten", ["elicit", "step", "ask", "checkpoint"])
    def test_a_call_that_was_never_awaited(self, app: MRTRServer, forgotten: str) -> None:
        at = 0

        @app.tool
        async def forgetful(ctx: Context) -> str:
            nonlocal at
            given = {"elicit": ("Who?", Login), "step": (look_up, "a"), "ask": (), "checkpoint": ()}
            await ctx.step(look_up, "a")
            at = line() + 1
            getattr(ctx, forgotten)(*given[forgotten])
            ctx.checkpoint()  # type: ignore[unused-coroutine]
            return "done"

        failed = Client(app).call("forgetful")
        assert f"ctx.{forgotten}() was called but never awaited; write `await ctx.{forgotten}(...)`" in failed.log
        assert f"{HERE} {at}, in forgetful" in failed.log
        assert failed.log.text.splitlines()[2:] == [f"See {help_for('was called but never awaited')}"]

    @pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
    def test_what_python_itself_says_of_it_names_the_method(self, app: MRTRServer) -> None:
        @app.tool
        async def forgetful(ctx: Context) -> str:
            asked: Any = ctx.elicit("Who?", Login)
            assert asked.__qualname__ == "Context.elicit"
            return str((await asked).name)

        assert Client(app).call("forgetful", answers={"login": {"name": "ann"}}).text == "ann"

    def test_an_ask_in_a_plain_function(self, app: MRTRServer) -> None:
        @app.tool
        def plain(ctx: Context) -> str:
            ctx.confirm("Sure?")  # type: ignore[unused-coroutine]
            return "done"

        failed = Client(app).call("plain")
        assert files(failed) == [__file__]
        assert f"{HERE} {plain.__code__.co_firstlineno + 2}, in plain" in failed.log
        assert "an ask was called in a plain `def`; make the handler `async def`, or return InputRequired" in failed.log

    def test_a_step_in_a_plain_function(self, app: MRTRServer) -> None:
        @app.tool
        def plain(ctx: Context) -> str:
            ctx.step(str)  # type: ignore[unused-coroutine]
            return "done"

        failed = Client(app).call("plain")
        assert files(failed) == [__file__]
        assert "a step was called in a plain `def`; make the handler `async def`" in failed.log
        assert "InputRequired" not in failed.log

    def test_a_key_that_is_used_twice(self, app: MRTRServer) -> None:
        @app.tool
        async def twice(ctx: Context) -> str:
            await ctx.confirm("One?", key="sure")
            await ctx.confirm("Two?", key="sure")
            return "done"

        flow = Client(app).flow("twice")
        flow.start()
        failed = flow.answer(sure={"confirm": True})
        assert files(failed) == [__file__]
        assert f"{HERE} {twice.__code__.co_firstlineno + 3}, in twice" in failed.log


def test_a_plain_test_adds_nothing_to_what_its_servers_log(app: MRTRServer) -> None:
    @app.tool
    async def divide(ctx: Context, by: int) -> int:
        return 1 // by

    failed = Client(app).call("divide", by=0)
    assert "event loop" not in failed.log
    assert failed.log.text.count("Traceback") == 1
