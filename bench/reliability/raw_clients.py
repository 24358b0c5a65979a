"""Raw socket clients, in great number: sockets that no library keeps in memory, and no library's manners.

It knows how a handshake is spelled and how frames are delimited. It measures nothing.
"""

from __future__ import annotations

import asyncio
import resource
import socket

HANDSHAKE = (
    b"GET /v1/realtime HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def most_sockets(wanted: int, spare: int = 200) -> int:
    """As many as are wanted, or as this process may open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - spare)


def framed(message: bytes) -> bytes:
    """One text frame, masked with zeros."""
    length = len(message)
    if length < 126:
        size = bytes([0x80 | length])
    else:
        size = b"\xfe" + length.to_bytes(2) if length < 1 << 16 else b"\xff" + length.to_bytes(8)
    return b"\x81" + size + bytes(4) + message


async def opened(host: str, room_bytes: int = 0, own_address: str = "") -> socket.socket:
    """`room_bytes`: for what has come and is not read; 0 leaves it to the kernel, which has megabytes."""
    address, _, port = host.rpartition(":")
    sock = socket.socket()
    sock.bind((own_address, 0))
    if room_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (address, int(port)))
    return sock


async def greeted(host: str, room_bytes: int = 0, own_address: str = "") -> socket.socket:
    """A WebSocket that has been accepted, and whose `ready` has been read."""
    sock = await opened(host, room_bytes, own_address)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, HANDSHAKE % host.encode())
    answer = b""
    while b'"ready"' not in answer:
        part = await loop.sock_recv(sock, 4096)
        if not part:
            raise ConnectionError(f"the server refused: {answer[:200]!r}")
        answer += part
    return sock
