"""Logging of the engine process: as the gateway does, in lines for people or JSON objects."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from engine.log_writer import log_handler

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # where it is for people
TIME = "%Y-%m-%dT%H:%M:%S%z"


def configure_logging(level: str, form: str) -> None:
    handler = log_handler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(LINE, TIME))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "event": record.getMessage(),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()
