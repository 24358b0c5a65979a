"""The log's format: lines for people, or one JSON object a line for machines.

Every logger of the process ends here, those of libraries too. It knows no message.
"""

from __future__ import annotations

import logging

import structlog
from structlog.typing import Processor

from engine.log_writer import log_handler
from realtime.config import LogFormat

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
TIME = "%Y-%m-%dT%H:%M:%S%z"  # where the server runs


def set_up(level: str, form: LogFormat) -> None:
    handler = log_handler()
    handler.setFormatter(logging.Formatter(LINE, TIME) if form == "console" else _json_formatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # Values are shown as Python spells them: what a client named its request moves no terminal's cursor.
    last: Processor = (
        structlog.processors.KeyValueRenderer(key_order=["event"])
        if form == "console"
        else structlog.stdlib.ProcessorFormatter.wrap_for_formatter
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, last],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _json_formatter() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", key="time"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # ASCII, whatever there is: a file's name may be no text at all.
            structlog.processors.JSONRenderer(default=str, separators=(",", ":")),
        ]
    )
