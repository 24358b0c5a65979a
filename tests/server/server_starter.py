"""Servers for tests in another language: `python -m tests.server.server_starter`, for as long as it can read.

It writes the port where it listens. Whoever connects there says in a line of JSON with which words a server
is to be started, and whether it is `scripted`, and is told its address and its process in another. Who hangs
up ends it, and is hung up on when it is gone.
"""

from __future__ import annotations

import json
import sys
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

from tests.server.server_process import PATIENCE_S, Served


class OneServer(StreamRequestHandler):
    def handle(self) -> None:
        asked = json.loads(self.rfile.readline())
        served = Served(*asked["words"], scripted=asked["scripted"])
        try:
            told = {"url": served.http, "pid": served.process.pid}
            self.wfile.write(json.dumps(told).encode() + b"\n")
            self.rfile.read()
            served.tell()
            served.process.wait(PATIENCE_S)
            sys.stderr.write(served.log())
        finally:
            served.end()


def main() -> None:
    with ThreadingTCPServer(("127.0.0.1", 0), OneServer) as starter:
        Thread(target=starter.serve_forever).start()
        print(starter.server_address[1], flush=True)
        sys.stdin.read()
        starter.shutdown()


if __name__ == "__main__":
    main()
