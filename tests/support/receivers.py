"""Servers on loopback for what goes out: HTTPS that behaves as told, a proxy, and an authority for certificates."""

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Authority:
    """An authority of the tests; `path` is its certificate, in PEM."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self.path = str(folder / "ca.pem")
        certificate = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
        Path(self.path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *names: str) -> ssl.SSLContext:
        """Return what a server of these names and addresses has."""
        key = ec.generate_private_key(ec.SECP256R1())
        known = [
            x509.IPAddress(ip_address(each)) if each[0].isdigit() or ":" in each else x509.DNSName(each)
            for each in names
        ]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = self._sign(subject, key.public_key(), x509.SubjectAlternativeName(known))
        path = self._folder / "server.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        return builder.add_extension(extension, critical=False).sign(self._key, hashes.SHA256())


class Receiver:
    """A server that keeps the head and body of each request. A reply may write what it likes."""

    def __init__(self, reply: Reply | bytes = OK, context: ssl.SSLContext | None = None) -> None:
        self._reply = reply
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.sent = 0

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.hang_up()

    @property
    def open(self) -> int:
        """How many connections are open."""
        return len(self._tasks)

    async def hang_up(self) -> None:
        """End all connections, and take new ones."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                self.requests.append((head, await reader.readexactly(int(sizes[0]) if sizes else 0)))
                await self._answer(reader, writer, head)
        writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        if isinstance(self._reply, bytes):
            writer.write(self._reply)
            await writer.drain()
        else:
            await self._reply(reader, writer, head)


async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, port: int) -> None:
    """Answer CONNECT, as a proxy does for which every name is this port of loopback."""
    there, back = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    try:
        await asyncio.gather(_copy(reader, back), _copy(there, writer))
    finally:
        back.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()
    target.transport.abort()
