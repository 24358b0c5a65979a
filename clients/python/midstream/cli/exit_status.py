"""How a command ends: its exit status, and the one line that is said where it fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from midstream.cli.error_messages import error_message
from midstream.cli.sanitize import sanitize
from midstream.errors import MidstreamError


def exit_status(
    work: Callable[[], int], *, file: str, wrong_file: type[Exception], url: str, trouble: int
) -> int:
    """Of work on a file with a server at `url`; `wrong_file` says what is wrong in the file."""
    try:
        return work()
    except BrokenPipeError:
        write_no_more()
        return trouble
    except wrong_file as error:
        message = f"{'standard input' if file == '-' else file}: {error}"
    except OSError as error:
        message = f"{error.filename or 'standard output'}: {error.strerror}"
    except MidstreamError as error:
        message = error_message(error, url)
    print(f"midstream: {sanitize(message)}", file=sys.stderr)  # it may quote the file
    return trouble


def write_no_more() -> None:
    """Whoever read our output has enough: so nothing more is written, at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
