"""A worker as routers by others expect it: OpenAI's completions, streamed at a fixed pace, and nothing else.

`python mock_worker.py PORT STEP_MS`. It writes as many tokens as it is asked for, and each is its index.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STEP_S = float(sys.argv[2]) / 1000


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Whether it is well, and whatever else is asked of it before it is used."""
        self._answer(json.dumps({"data": [{"id": "toy", "object": "model"}], "model_path": "toy"}).encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(asked["max_tokens"]):
            time.sleep(STEP_S)
            self._write("data: " + json.dumps({"choices": [{"index": 0, "text": f" {index}"}]}) + "\n\n")
        self._write("data: [DONE]\n\n")
        self._write("")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _write(self, text: str) -> None:
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Worker).serve_forever()
