"""A resolver of the tests: a DNS server on loopback, whose answers change, and what asks it (RFC 1035)."""

import asyncio
import secrets
import struct
from collections.abc import Sequence
from ipaddress import ip_address

_KINDS = {4: 1, 6: 28}  # A and AAAA


class Dns(asyncio.DatagramProtocol):
    """Answers with the addresses of a name: at each question with those of the next row, and with the last for ever."""

    def __init__(self, **names: Sequence[Sequence[str]]) -> None:
        self.rows = {name.replace("_", "."): list(rows) for name, rows in names.items()}
        self.asked: list[str] = []

    async def __aenter__(self) -> "Dns":
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        await asyncio.sleep(0)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer one question; all addresses of a name at once, for either kind."""
        name = _name_in(data)
        rows = self.rows.get(name, [[]])
        self.asked.append(name)
        addresses = [ip_address(each) for each in (rows.pop(0) if len(rows) > 1 else rows[0])]
        head = data[:2] + struct.pack("!HHHHH", 0x8180 if addresses else 0x8183, 1, len(addresses), 0, 0)
        records = [
            struct.pack("!HHHIH", 0xC00C, _KINDS[each.version], 1, 0, len(each.packed)) + each.packed
            for each in addresses
        ]
        self._transport.sendto(head + data[12:] + b"".join(records), addr)

    async def resolve(self, host: str) -> list[str]:
        """Ask over UDP, as a resolver does, and return the addresses of the reply. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        question = b"".join(bytes([len(each)]) + each.encode() for each in host.split(".")) + b"\0"
        query = secrets.token_bytes(2) + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 0) + question + struct.pack("!HH", 1, 1)
        transport, asking = await loop.create_datagram_endpoint(
            _Asking, remote_addr=self._transport.get_extra_info("sockname")
        )
        try:
            transport.sendto(query)
            reply = await asking.reply
        finally:
            transport.close()
        assert reply[:2] == query[:2]
        left, addresses = reply[len(query) :], []
        while left:
            size = struct.unpack("!H", left[10:12])[0]
            addresses.append(str(ip_address(left[12 : 12 + size])))
            left = left[12 + size :]
        if not addresses:
            raise OSError(f"{host} has no address")
        return addresses


class _Asking(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.reply.set_result(data)


def _name_in(query: bytes) -> str:
    labels, place = [], 12
    while size := query[place]:
        labels.append(query[place + 1 : place + 1 + size].decode())
        place += 1 + size
    return ".".join(labels)
