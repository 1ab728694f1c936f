"""Carries connections from a socket that was opened outside the sandbox to the API server inside.

The listening socket belongs to the machine's network namespace and this process to the sandbox's, so an ordinary client on the
machine reaches the API server on a loopback port that cannot clash with another cluster's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import struct

CHUNK_BYTES = 256 * 1024


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with a reset, so that a client does not mistake it for an orderly end."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Carries one connection both ways until either side breaks or both have ended."""
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port, limit=CHUNK_BYTES)
    except OSError:
        _reset(writer)
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, far_writer))
            tasks.create_task(_copy(far_reader, writer))
    except* OSError:
        _reset(writer)
    finally:
        far_writer.close()
        writer.close()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Accepts for ever."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry(reader, writer, host, port)

    server = await asyncio.start_server(accepted, sock=listener, limit=CHUNK_BYTES)
    async with server:
        await server.serve_forever()


def main() -> None:
    """`--listen-descriptor` is an inherited listening socket, `--to` the HOST:PORT behind it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen-descriptor", type=int, required=True)
    parser.add_argument("--to", required=True)
    arguments = parser.parse_args()
    host, _, port = arguments.to.rpartition(":")
    asyncio.run(serve(socket.socket(fileno=arguments.listen_descriptor), host, int(port)))


if __name__ == "__main__":
    main()
