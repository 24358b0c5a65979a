"""A client of an engine by somebody who has its `.proto` and nothing else of ours; a program of its own.

`python engine_stranger.py FOLDER TARGET TOKEN AUTHORITIES KEY CERTIFICATE`: FOLDER has what protoc made. It
has one stream computed, and prints what it heard, as JSON.
"""

import importlib
import json
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import msgspec.msgpack  # any MessagePack would do

PATIENCE_S = 30.0
TOKENS = 12


def main(folder: str, target: str, token: str, *files: str) -> None:
    sys.path.insert(0, folder)
    messages = importlib.import_module("engine_link_pb2")
    services = importlib.import_module("engine_link_pb2_grpc")
    credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    said: SimpleQueue[Any] = SimpleQueue()

    def say(*commands: list[Any]) -> None:
        said.put(messages.Commands(msgpack=msgspec.msgpack.encode(commands)))

    with grpc.secure_channel(target, credentials) as channel:
        link = services.EngineLinkStub(channel)
        shown = [("authorization", f"Bearer {token}")]
        call = link.Join(iter(said.get, None), metadata=shown, timeout=PATIENCE_S)
        heard = (msgspec.msgpack.decode(message.msgpack) for message in call)
        hello = next(heard)
        tokens, finish = [], None
        if hello[0] == "Hello":
            say()
            say(["Submit", 7, [1, 2, 3], {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}, 4])
            while finish is None:
                for stream, _early, _index, more, *rest in next(heard)[2]:
                    assert stream == 7
                    tokens += more
                    finish = rest[3] if len(rest) > 3 else None
                    if len(tokens) == 4:
                        say(["Grant", 7, TOKENS])
        said.put(None)
    ours = sorted(
        {name.partition(".")[0] for name in sys.modules} & {"engine", "midstream", "realtime", "tests"}
    )
    print(json.dumps({"hello": hello, "tokens": tokens, "finish": finish, "ours": ours}, default=bytes.hex))


if __name__ == "__main__":
    main(*sys.argv[1:])
