"""Midstream's Python client: stream from a language model, and steer it while it writes.

    async with midstream.connect("http://127.0.0.1:8000") as client:
        stream = await client.start(messages=[{"role": "user", "content": "Hi"}], temperature=0.7)
        async for chunk in stream:
            print(chunk.text, end="")

`midstream.sync.connect` is the same without `async` and `await`. `midstream.protocol` has the types.
"""

from midstream import sync
from midstream.agent import Agent, Run
from midstream.client import Client, Completion, connect
from midstream.errors import (
    ConnectionLost,
    ContextTooLong,
    Draining,
    EngineError,
    Forbidden,
    InvalidFrame,
    InvalidParams,
    LimitReached,
    MidstreamError,
    ModelLoading,
    Overloaded,
    ParseError,
    ProtocolError,
    RateLimited,
    RequestConflict,
    RequestError,
    RequestExpired,
    RequestFinished,
    RequestTaken,
    StreamFailed,
    TooLarge,
    TooManyStreams,
    Unauthenticated,
    UnknownModel,
    UnknownRequest,
    Unsupported,
)
from midstream.protocol import Budget, Guard
from midstream.record_format import Record, RecordError
from midstream.recording import Recording, read_records
from midstream.replay import Difference, Replay, ReplayError
from midstream.spans import Call, Thought
from midstream.stream import Stream
from midstream.stream_core import Chunk, Restarted
from midstream.tool_tasks import ToolOutcome, ToolProgress, progress
from midstream.tools import BadCall, JsonTool, run_call, tool_of

__all__ = [
    "Agent",
    "BadCall",
    "Budget",
    "Call",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionLost",
    "ContextTooLong",
    "Difference",
    "Draining",
    "EngineError",
    "Forbidden",
    "Guard",
    "InvalidFrame",
    "InvalidParams",
    "JsonTool",
    "LimitReached",
    "MidstreamError",
    "ModelLoading",
    "Overloaded",
    "ParseError",
    "ProtocolError",
    "RateLimited",
    "Record",
    "RecordError",
    "Recording",
    "Replay",
    "ReplayError",
    "RequestConflict",
    "RequestError",
    "RequestExpired",
    "RequestFinished",
    "RequestTaken",
    "Restarted",
    "Run",
    "Stream",
    "StreamFailed",
    "Thought",
    "TooLarge",
    "TooManyStreams",
    "ToolOutcome",
    "ToolProgress",
    "Unauthenticated",
    "UnknownModel",
    "UnknownRequest",
    "Unsupported",
    "connect",
    "progress",
    "read_records",
    "run_call",
    "sync",
    "tool_of",
]
