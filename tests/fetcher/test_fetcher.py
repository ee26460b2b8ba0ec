"""What a peer names is asked, and nothing else: no address of the company's own, by no spelling, name or redirect."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mrtr_server.errors import SetupError
from mrtr_server.fetcher import Fetched, Fetcher, UnfitUrl, Unreachable

from ..support.dns import Dns
from ..support.receivers import OK, Authority, Receiver, Reply, connect
from ..support.serving import TIMEOUT, free_ports, until

pytestmark = pytest.mark.anyio

PRIVATE = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.254",
    "169.254.169.254",
    "168.63.129.16",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "::ffff:0:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "4000::1",
]

ODD = (
    "2130706433 017700000001 0x7f000001 0x7f.1 127.1 127.0.1 0177.0.0.1 127.0.0.01 0x7f.0.0.1 127.0.0.1. 127.0.0.1.. "
    "0 1 08.8.8.8 256.1.1.1 8.8.8.8.8 4294967297 １２７.0.0.1 127。0。0。1 ①②⑦.0.0.1 [::1%25lo] [fe80::1%1] [v1.x] "
    "%31%32%37.0.0.1 localhost LOCALHOST ⓛocalhost localhost. a.localhost printer.local metadata.google.internal "
    "intranet router.home.arpa a..b -a.example a-.example xn--.. a_b!.example ß..example \u200d.example "
    + "a" * 64
    + ".example "
    + "a." * 127
    + "aa"
).split()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def receiver(authority: Authority) -> AsyncIterator[Receiver]:
    """Serves for two names, and by the address of loopback."""
    async with Receiver(context=authority.context("a.example", "b.example", "127.0.0.1", "localhost")) as receiver:
        yield receiver


async def reason(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(Unreachable) as caught:
        await fetcher.fetch("POST", url, content=b"{}")
    assert str(caught.value) == caught.value.reason
    assert caught.value.__cause__ is None
    return caught.value.reason


def fetcher_of(authority: Authority, dns: Dns | None = None, **options: Any) -> Fetcher:
    fetcher = Fetcher(ca=authority.path, **options)
    if dns is not None:
        fetcher.resolve = dns.resolve  # type: ignore[method-assign]
    return fetcher


class TestUrls:
    @pytest.mark.parametrize("address", PRIVATE)
    async def test_no_address_that_is_not_of_the_internet(self, address: str) -> None:
        host = f"[{address}]" if ":" in address else address
        fetcher = Fetcher()
        for url in (f"https://{host}/", f"https://{host}:8443/x?y"):
            with pytest.raises(UnfitUrl, match="not of the Internet"):
                fetcher.check(url)
            with pytest.raises(UnfitUrl):
                await fetcher.fetch("GET", url)

    @pytest.mark.parametrize("host", ODD)
    def test_no_host_in_an_odd_spelling(self, host: str) -> None:
        with pytest.raises(UnfitUrl):
            Fetcher().check(f"https://{host}/")

    @pytest.mark.parametrize("host", ["8.8.8.8", "1.1.1.1", "[2606:4700::1111]", "hooks.example.com", "a.b-c.d_e.co"])
    def test_what_is_of_the_internet(self, host: str) -> None:
        assert Fetcher().check(f"https://{host}/") == f"https://{host}/"

    @pytest.mark.parametrize(
        ("url", "stored"),
        [
            ("HTTPS://Hooks.Example.COM:443", "https://hooks.example.com/"),
            ("https://a.example?x=1", "https://a.example/?x=1"),
            ("https://bücher.example/ä?ö", "https://xn--bcher-kva.example/%C3%A4?%C3%B6"),
            ("https://[2606:4700:0:0::1111]:8443/A", "https://[2606:4700::1111]:8443/A"),
            ("https://a.example/%2F..//b@c:d", "https://a.example/%2F..//b@c:d"),
        ],
    )
    def test_one_form_to_compare(self, url: str, stored: str) -> None:
        assert Fetcher().check(url) == stored
        assert Fetcher().check(stored) == stored

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("http://a.example/", "must begin with https://"),
            ("ftp://a.example/", "must begin with https://"),
            ("//a.example/", "must begin with https://"),
            ("https:a.example", "must begin with https://"),
            ("https:///a", "has no host"),
            ("https://", "has no host"),
            ("https://user:pw@a.example/", "user or a password"),
            ("https://a.example@127.0.0.1/", "user or a password"),
            ("https://a.example/#b", "fragment"),
            ("https://a.example\\@b.example/", "character"),
            ("https://a.example/\r\nHost: b", "character"),
            ("https://a.example/\ud800", "character"),
            ("https://a.example/\x85", "character"),
            ("https://a.example/%0", "character"),
            ("https://a.example:0/", "port"),
            ("https://a.example:/", "port"),
            ("https://a.example:70000/", "port"),
            ("https://a.example:1:2/", "port"),
            ("https://[::1", "brackets"),
            ("https://[2606:4700::1111]x/", "port"),
            ("https://a.example/" + "a" * 2048, "longer than 2048"),
            ("https://a.example/" + "ä" * 1000, "when it is escaped"),
        ],
    )
    def test_says_what_is_wrong(self, url: str, said: str) -> None:
        with pytest.raises(UnfitUrl, match=said):
            Fetcher().check(url)


class TestAllowed:
    @pytest.mark.parametrize(
        ("entry", "url"),
        [
            ("hooks.internal.example.com", "https://hooks.internal.example.com:9/"),
            ("intranet", "https://intranet/"),
            ("intranet:8443", "https://intranet:8443/"),
            ("https://intranet:8443/", "https://intranet:8443/"),
            ("10.1.0.0/16", "https://10.1.2.3/"),
            ("10.1.2.3", "https://10.1.2.3:8/"),
            ("10.1.2.3:8", "https://10.1.2.3:8/"),
            ("fd00::/16", "https://[fd00::1]/"),
            ("10.1.0.0/16", "https://hooks.corp/"),  # what it resolves to decides
            ("http://127.0.0.1:9000", "http://127.0.0.1:9000/"),
            ("http://localhost:9000", "http://localhost:9000/"),
            ("http://[::1]:9000", "http://[::1]:9000/"),
        ],
    )
    def test_what_is_named(self, entry: str, url: str) -> None:
        if "example" not in url:
            with pytest.raises(UnfitUrl):
                Fetcher().check(url)
        assert Fetcher(allow=[entry]).check(url) == url

    @pytest.mark.parametrize(
        ("entry", "url"),
        [
            ("intranet:8443", "https://intranet/"),
            ("10.1.0.0/16", "https://10.2.0.1/"),
            ("10.1.0.0/16", "https://[::ffff:10.1.0.1]/"),
            ("http://127.0.0.1:9000", "http://127.0.0.1:9001/"),
            ("http://127.0.0.1:9000", "https://127.0.0.1:9000/"),
            ("intranet", "http://intranet/"),
            ("intranet", "https://a.intranet/"),
        ],
    )
    def test_nothing_beside_it(self, entry: str, url: str) -> None:
        with pytest.raises(UnfitUrl):
            Fetcher(allow=[entry]).check(url)

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            ("http://intranet", "is http, which is for loopback alone; write https://intranet"),
            ("http://10.0.0.1:80", "loopback alone"),
            ("*.example.com", "list each"),
            ("https://a.example/hooks", "has a path; write https://a.example"),
            ("10.1.2.3/16", "write 10.1.0.0/16"),
            ("10.1.0.0/99", "write it like 10.1.0.0/16"),
            ("0.0.0.0/0", "every address"),
            ("::/0", "every address"),
            ("2130706433", "four decimal numbers"),
            ("", "has no host"),
        ],
    )
    def test_a_wrong_entry_says_what_to_write(self, entry: str, said: str) -> None:
        with pytest.raises(SetupError, match=said):
            Fetcher(allow=[entry])

    def test_one_string_a_wrong_proxy_and_a_wrong_file(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match="pass a list"):
            Fetcher(allow="intranet")
        for proxy in ("proxy:3128", "https://proxy:3128", "http://u:secret@proxy:x", "http://proxy", "http://[x"):
            with pytest.raises(SetupError, match=r"http://proxy\.example\.com:3128") as caught:
                Fetcher(proxy=proxy)
            assert "secret" not in str(caught.value)
        (tmp_path / "ca.pem").write_text("none")
        for path in (tmp_path / "ca.pem", tmp_path / "absent"):
            with pytest.raises(SetupError, match="must be a file in PEM"):
                Fetcher(ca=str(path))


class TestNames:
    @pytest.mark.parametrize("address", PRIVATE)
    async def test_a_name_leads_to_no_address_that_is_not_of_the_internet(
        self, address: str, authority: Authority
    ) -> None:
        async with Dns(a_example=[[address]]) as dns:
            fetcher = fetcher_of(authority, dns)
            assert await reason(fetcher, "https://a.example/") == "connection_refused"
            assert dns.asked == ["a.example"]

    @pytest.mark.parametrize("host", ["localhost", "ip6-localhost", socket.gethostname(), "absent.invalid"])
    async def test_the_resolver_of_the_system_leads_to_none_either(
        self, host: str, authority: Authority, receiver: Receiver
    ) -> None:
        fetcher = fetcher_of(authority, allow=["10.255.255.255/32"])  # with a network, names are not refused as such
        assert await reason(fetcher, f"https://{host.lower()}:{receiver.port}/") == "connection_refused"
        assert receiver.connections == 0
        await fetcher.close()

    async def test_a_name_that_changes_between_check_and_connection(
        self, authority: Authority, receiver: Receiver
    ) -> None:
        async with Dns(a_example=[["127.0.0.1"], ["10.0.0.1"]]) as dns:
            fetcher = fetcher_of(authority, dns, allow=["127.0.0.1"])
            url = fetcher.check(f"https://a.example:{receiver.port}/")
            assert (await fetcher.fetch("GET", url)).status == 200  # one question, and the address that was checked
            assert dns.asked == ["a.example"]
            await fetcher.close()
            assert await reason(fetcher, url) == "connection_refused"
            assert dns.asked == ["a.example"] * 2
            assert receiver.connections == 1

    async def test_the_addresses_that_fit_are_tried_in_their_order(
        self, authority: Authority, receiver: Receiver
    ) -> None:
        async with Dns(a_example=[["10.0.0.1", "::1", "127.0.0.2", "127.0.0.1"]]) as dns:
            fetcher = fetcher_of(authority, dns, allow=["127.0.0.0/30"])  # nothing listens on the second one
            assert (await fetcher.fetch("GET", f"https://a.example:{receiver.port}/")).status == 200
            await fetcher.close()


class TestConnections:
    async def test_a_kept_one_is_used_again_for_its_own_name_alone(
        self, authority: Authority, receiver: Receiver
    ) -> None:
        async with Dns(a_example=[["127.0.0.1"]], b_example=[["127.0.0.1"]]) as dns:
            fetcher = fetcher_of(authority, dns, allow=["a.example", "b.example"])
            for host in ("a.example", "b.example", "a.example", "b.example"):
                url = f"https://{host}:{receiver.port}/hook?x=1"
                got = await fetcher.fetch("POST", url, headers={"X-Own": "1"}, content=b"{}")
                assert got == Fetched(200, b"ok")
            assert receiver.connections == 2
            assert dns.asked == ["a.example", "b.example"]
            head, body = receiver.requests[0]
            assert head.startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
            assert f"host: a.example:{receiver.port}\r\n".encode() in head.lower()
            assert b"x-own: 1\r\n" in head.lower()
            assert body == b"{}"
            await fetcher.close()

    async def test_one_that_its_server_has_ended_is_replaced(self, authority: Authority, receiver: Receiver) -> None:
        fetcher = fetcher_of(authority, allow=["127.0.0.1"])
        url = f"https://127.0.0.1:{receiver.port}/"
        await fetcher.fetch("GET", url)
        await receiver.hang_up()  # in the same turn of the event loop: the fetcher may not know it yet
        assert (await fetcher.fetch("GET", url)).status == 200
        assert receiver.connections == 2
        await fetcher.close()

    async def test_one_that_ends_without_a_byte_is_replaced_if_it_was_kept(self, authority: Authority) -> None:
        async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
            if len(there.requests) in (2, 4, 5):
                raise ConnectionError
            writer.write(OK)

        async with Receiver(kept, authority.context("127.0.0.1")) as there:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"])
            url = f"https://127.0.0.1:{there.port}/"
            assert (await fetcher.fetch("GET", url)).status == 200
            assert (await fetcher.fetch("GET", url)).status == 200
            assert (len(there.requests), there.connections) == (3, 2)
            assert await reason(fetcher, url) == "connection_refused"
            assert (len(there.requests), there.connections) == (5, 3)

    async def test_those_that_are_kept_count_in_the_bound_and_end_in_time(
        self, authority: Authority, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with Dns(a_example=[["127.0.0.1"]], b_example=[["127.0.0.1"]]) as dns:
            fetcher = fetcher_of(authority, dns, allow=["a.example", "b.example"], most_connections=1)
            await fetcher.fetch("GET", f"https://a.example:{receiver.port}/")
            await fetcher.fetch("GET", f"https://b.example:{receiver.port}/")
            await until(lambda: receiver.open == 1, "the end of the first connection")
            monkeypatch.setattr("mrtr_server.fetcher.KEPT_SECONDS", -1.0)
            for _ in range(2):
                await fetcher.fetch("GET", f"https://b.example:{receiver.port}/")
                await until(lambda: not receiver.open, "the end of a connection that is not kept")
            assert receiver.connections == 3
            await fetcher.close()

    async def test_no_more_than_the_bound_and_who_waits_has_its_own_time(self, authority: Authority) -> None:
        busy, most = 0, 0

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            await asyncio.sleep(0.2)
            busy -= 1
            writer.write(OK)

        async with Receiver(slow, authority.context("127.0.0.1")) as receiver:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"], most_connections=2, timeout=1.5)
            url = f"https://127.0.0.1:{receiver.port}/"
            got = await asyncio.gather(*(fetcher.fetch("GET", url) for _ in range(20)))  # 2 s in all
            assert [each.status for each in got] == [200] * 20
            assert (most, receiver.connections) == (2, 2)
            await fetcher.close()

    async def test_each_event_loop_has_its_own(self, authority: Authority, receiver: Receiver) -> None:
        fetcher = fetcher_of(authority, allow=["127.0.0.1"])
        url = f"https://127.0.0.1:{receiver.port}/"
        found: list[int] = []

        async def elsewhere() -> None:
            found.extend([(await fetcher.fetch("GET", url)).status for _ in range(2)])
            await fetcher.close()

        await fetcher.fetch("GET", url)
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        thread.start()
        await asyncio.to_thread(thread.join, TIMEOUT)
        await fetcher.fetch("GET", url)
        assert found == [200, 200]
        assert receiver.connections == 2
        await fetcher.close()

    async def test_http_on_loopback(self) -> None:
        async with Receiver() as receiver:
            for host in ("127.0.0.1", "localhost"):
                fetcher = Fetcher(allow=[f"http://{host}:{receiver.port}"])
                assert await fetcher.fetch("GET", f"http://{host}:{receiver.port}/") == Fetched(200, b"ok")
                await fetcher.close()

    async def test_http_to_a_name_of_loopback_that_leads_elsewhere(self, authority: Authority) -> None:
        async with Dns(localhost=[["8.8.8.8"]]) as dns:
            fetcher = fetcher_of(authority, dns, allow=["http://localhost:9000"])
            assert await reason(fetcher, "http://localhost:9000/") == "connection_refused"


class TestResponses:
    """What a server may cost that means harm. Each fetch ends, with its status or a reason."""

    async def fetch(self, authority: Authority, reply: Reply | bytes, within: float = TIMEOUT) -> Fetched | str:
        async with Receiver(reply, authority.context("127.0.0.1")) as self.receiver:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"], timeout=within)
            try:
                return await fetcher.fetch("POST", f"https://127.0.0.1:{self.receiver.port}/", content=b"{}")
            except Unreachable as error:
                return error.reason
            finally:
                await fetcher.close()

    async def test_a_redirect_is_a_status(self, authority: Authority) -> None:
        async with Receiver(context=authority.context("127.0.0.1")) as inner:
            where = f"https://127.0.0.1:{inner.port}/".encode()
            for status in (b"301", b"302", b"303", b"307", b"308"):
                reply = b"HTTP/1.1 %s Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, where)
                assert await self.fetch(authority, reply) == Fetched(int(status), b"")
            assert inner.connections == 0

    @pytest.mark.parametrize("head", [b"Content-Length: 99999999", b"Transfer-Encoding: chunked", b"Connection: close"])
    async def test_an_endless_body_is_cut(self, authority: Authority, head: bytes) -> None:
        async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: bytes) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % head)
            while True:
                writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n" if b"chunked" in head else b"x" * 1000)
                self.receiver.sent += 1000
                await writer.drain()

        assert await self.fetch(authority, endless) == Fetched(200, b"x" * 4096)
        assert self.receiver.sent < 10_000_000  # what buffers of the system take

    async def test_chunks_of_one_byte_are_cut_sooner(self, authority: Authority) -> None:
        chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10_000
        got = await self.fetch(authority, chunks)
        assert isinstance(got, Fetched)
        assert (got.status, set(got.body)) == (200, {ord("x")})
        assert len(got.body) < 4096

    @pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
    async def test_what_drips_has_one_deadline(self, authority: Authority, begun: bytes) -> None:
        async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: bytes) -> None:
            writer.write(begun)
            while True:
                writer.write(b"X")
                await writer.drain()
                await asyncio.sleep(0.02)

        began = time.monotonic()
        assert await self.fetch(authority, dripping, within=0.5) == "timeout"
        assert time.monotonic() - began < TIMEOUT / 4

    @pytest.mark.parametrize(
        "part",
        [b"X: " + b"x" * 1000 + b"\r\n", b"x" * 1000, b"\r\nHTTP/1.1 100 Continue\r\n"],
        ids=["headers", "header", "1xx"],
    )
    async def test_a_huge_head_is_refused(self, authority: Authority, part: bytes) -> None:
        async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: bytes) -> None:
            writer.write(b"HTTP/1.1 100 Continue\r\n" if b"100" in part else b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                writer.write(part)
                self.receiver.sent += len(part)
                await writer.drain()

        assert await self.fetch(authority, huge) == "connection_refused"
        assert self.receiver.sent < 10_000_000

    @pytest.mark.parametrize(
        "reply",
        [
            b"220 smtp.example ESMTP\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        ],
    )
    async def test_what_is_no_response(self, authority: Authority, reply: bytes) -> None:
        assert await self.fetch(authority, reply, within=TIMEOUT) == "connection_refused"

    async def test_what_comes_without_a_request_ends_the_connection(self, authority: Authority) -> None:
        async with Receiver(OK + OK, authority.context("127.0.0.1")) as receiver:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"])
            for _ in range(2):
                assert (await fetcher.fetch("GET", f"https://127.0.0.1:{receiver.port}/")).status == 200
            assert receiver.connections == 2
            await fetcher.close()


class TestTls:
    async def test_a_certificate_of_another_name_or_authority(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        contexts = authority.context("b.example", "127.0.0.2"), Authority(tmp_path / "other").context("a.example")
        async with Dns(a_example=[["127.0.0.1"]]) as dns:
            for context in contexts:
                async with Receiver(context=context) as receiver:
                    fetcher = fetcher_of(authority, dns, allow=["a.example", "127.0.0.1"])
                    assert await reason(fetcher, f"https://a.example:{receiver.port}/") == "tls_error"
                    assert await reason(fetcher, f"https://127.0.0.1:{receiver.port}/") == "tls_error"
                    assert not receiver.requests
                    await fetcher.close()

    async def test_a_server_without_tls(self, authority: Authority) -> None:
        async def greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 smtp.example ESMTP\r\n")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(greeting, "127.0.0.1", 0) as server:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"])
            port = server.sockets[0].getsockname()[1]
            assert await reason(fetcher, f"https://127.0.0.1:{port}/") == "tls_error"

    async def test_a_handshake_that_never_comes_leaves_no_connection(self, authority: Authority) -> None:
        ended = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            ended.set()
            writer.transport.abort()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            fetcher = fetcher_of(authority, allow=["127.0.0.1"], timeout=0.3)
            assert await reason(fetcher, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/") == "timeout"
            await asyncio.wait_for(ended.wait(), TIMEOUT)

    async def test_nobody_listens(self, authority: Authority) -> None:
        (port,) = free_ports(1)
        fetcher = fetcher_of(authority, allow=["127.0.0.1"])
        assert await reason(fetcher, f"https://127.0.0.1:{port}/") == "connection_refused"


class TestEnvironmentAndProxy:
    async def test_variables_of_the_environment_do_not_count(
        self, authority: Authority, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        async with Receiver() as proxy:
            for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy", "all_proxy"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv("NO_PROXY", "*")
            monkeypatch.setenv("SSL_CERT_FILE", authority.path)
            monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
            monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
            url = f"https://127.0.0.1:{receiver.port}/"
            fetcher = Fetcher(allow=["127.0.0.1"])
            assert await reason(fetcher, url) == "tls_error"
            fetcher = fetcher_of(authority, allow=["127.0.0.1"])
            assert (await fetcher.fetch("GET", url)).status == 200
            assert proxy.connections == 0
            assert not (tmp_path / "keys").exists()
            await fetcher.close()

    async def test_all_leaves_by_the_proxy(self, authority: Authority, receiver: Receiver) -> None:
        async with Receiver(partial(connect, port=receiver.port)) as proxy, Dns() as dns:
            fetcher = fetcher_of(authority, dns, proxy=f"http://me:p%40ss@127.0.0.1:{proxy.port}")
            for _ in range(2):
                assert await fetcher.fetch("POST", "https://a.example/x", content=b"1") == Fetched(200, b"ok")
            assert await reason(fetcher, "https://c.example/") == "tls_error"  # the certificate is of other names
            assert await fetcher.fetch("POST", "https://b.example:8443/x") == Fetched(200, b"ok")
            assert [head.split(b" ")[1] for head, _ in proxy.requests] == [
                b"a.example:443",
                b"c.example:443",
                b"b.example:8443",
            ]
            assert b"proxy-authorization: basic bwu6cebzcw==" in proxy.requests[0][0].lower()
            assert not any(b"proxy" in head.lower() for head, _ in receiver.requests)
            assert dns.asked == []
            for host in ("10.0.0.1", "[::ffff:10.0.0.1]", "localhost", "intranet", "metadata.google.internal"):
                with pytest.raises(UnfitUrl):
                    await fetcher.fetch("GET", f"https://{host}/")
            await fetcher.close()

    async def test_what_is_the_companys_own_does_not(self, authority: Authority, receiver: Receiver) -> None:
        async with Receiver() as proxy, Dns(a_example=[["127.0.0.1"]]) as dns:
            fetcher = fetcher_of(
                authority, dns, allow=["a.example", "127.0.0.0/8"], proxy=f"http://127.0.0.1:{proxy.port}"
            )
            for host in ("a.example", "127.0.0.1"):
                assert (await fetcher.fetch("GET", f"https://{host}:{receiver.port}/")).status == 200
            assert proxy.connections == 0
            with pytest.raises(UnfitUrl):  # nobody here knows where it leads
                fetcher.check("https://hooks.corp/")
            await fetcher.close()

    @pytest.mark.parametrize(
        "reply",
        [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\nsecret", b"HTTP/1.1 200 OK\r\n\r\nearly", b"x\r\n\r\n"],
    )
    async def test_a_proxy_that_refuses(self, authority: Authority, reply: bytes) -> None:
        async with Receiver(reply) as proxy:
            fetcher = fetcher_of(authority, proxy=f"http://127.0.0.1:{proxy.port}")
            assert await reason(fetcher, "https://a.example/") == "connection_refused"

    async def test_a_proxy_that_is_away(self, authority: Authority) -> None:
        (port,) = free_ports(1)
        fetcher = fetcher_of(authority, proxy=f"http://127.0.0.1:{port}")
        assert await reason(fetcher, "https://a.example/") == "connection_refused"
