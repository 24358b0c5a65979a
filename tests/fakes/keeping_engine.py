"""What an engine that listens keeps of the streams of a simulated one: each command as it reaches the engine,
and each step's news as they leave it. At any time it says whether another gateway would build the very
stream."""

from __future__ import annotations

from engine import api
from engine.listening.kept_streams import KeptStream, KeptStreams
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.stream.owner import Owner
from realtime.stream.stream import Stream
from realtime.text.served_model import ServedModel

NOW = 1000.0


class Keeping:
    def __init__(self) -> None:
        self.kept: dict[int, KeptStream[str]] = {}  # by number
        self._streams = KeptStreams[str](lambda: NOW)
        self._unsaid = list[api.Kept]()

    def take(self, commands: list[api.AnyCommand]) -> list[api.AnyCommand]:
        """Returns what the engine is told."""
        told = list[api.AnyCommand]()
        for command in commands:
            if isinstance(command, api.Submit) and command.keep is not None:
                kept = self._streams.begin(command, command.keep, "gateway", command.stream, NOW)
                self.kept[command.stream] = kept
                if command.keep.record:
                    self._unsaid.append(api.Kept(command.stream))
            elif isinstance(command, api.Command) and (known := self.kept.get(command.stream)) is not None:
                if isinstance(command, api.Note):
                    self._streams.note(known, command, NOW)
                else:
                    self._streams.take(known, command)
            if not isinstance(command, api.Note):
                told.append(command)
        return told

    def answers(self) -> list[api.Kept]:
        """To what was taken since these were said last."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def tell(self, output: api.StepOutput) -> None:
        for news in output.news:
            if (kept := self.kept.get(news.stream)) is not None:
                self._streams.tell(kept, news, NOW)

    def rebuilt(self, number: int, model: ServedModel, window: int, owner: Owner) -> Stream | None:
        """As another gateway would have it, with all that is under way to this one; None where it could not
        be built."""
        kept = self.kept[number]
        if not kept.journal.whole:
            return None
        key = kept.journal.keep.key
        rebuilt = RebuiltStream(
            number, key, kept.journal.told(), model, owner=owner, window=window, ahead_s=0
        )
        for _ in rebuilt.replay():
            pass
        rebuilt.unsaid()
        return rebuilt.stream
