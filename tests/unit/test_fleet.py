"""The fleet, with links that lead nowhere: engines come, go and fail one beside the other, and those that run
do not feel it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine import api, toy_model
from midstream.protocol import Message
from realtime.background_tasks import BackgroundTasks
from realtime.fleet import fleet as fleet_module
from realtime.fleet.fleet import Fleet
from realtime.fleet.place import EnginePlace, PlaceError
from realtime.fleet.served_models import ServedModels
from realtime.fleet.supervisor import Patience, Supervisor
from realtime.fleet.watched_engine import Hear
from realtime.hub.models import Keeper
from tests.fakes.engine_links import HELLO, Begun, Link
from tests.fakes.simulated_client import SIZE
from tests.fakes.simulated_server import SimulatedServer


class Place:
    """Where engines have these faults, one after the other, and later none; or always the same one."""

    def __init__(
        self, name: str, *faults: str, always: str = "", ours: bool = True, hello: api.Hello = HELLO
    ) -> None:
        self.links = list[Link]()
        self.made: asyncio.Queue[Link] = asyncio.Queue()
        self._faults = iter(faults)
        self._always = always
        self._hello = hello
        self.place = EnginePlace(name, self._connect, ours)

    def _connect(self, hear: Hear, closed: Callable[[], None]) -> Link:
        fault = next(self._faults, self._always)
        link = Link(hear, closed, self.made.put_nowait, fault, self._hello)
        self.links.append(link)
        self.made.put_nowait(link)
        return link


class Run:
    """A fleet of these, with a hub that has nothing else."""

    def __init__(
        self,
        *places: Place | EnginePlace,
        spare: bool = False,
        keep_alive_s: dict[str, float] | None = None,
    ) -> None:
        self.begun = Begun()
        self.fleet = Fleet(
            [each.place if isinstance(each, Place) else each for each in places],
            self.begun,
            BackgroundTasks(),
            patience=Patience(silence_s=1000, start_s=1000, answer_s=1000),
            spare=spare,
            models=ServedModels({"toy": api.EngineOptions(model="toy")}),
            keep_alive_s=keep_alive_s,
        )
        self.fleet.hub = self.hub = SimulatedServer(SIZE).hub
        self.hub.engine_lost(0)  # the server's own

    @property
    def keeper(self) -> Keeper:
        """Of the toy model."""
        keeper = self.hub.models.find("toy").keeper
        assert keeper is not None
        return keeper

    @property
    def serving(self) -> list[int]:
        return [number for number in range(10) if number in self.hub.serving.engines]

    async def use(self, *places: Place) -> None:
        await self.fleet.use([each.place for each in places])


@asynccontextmanager
async def running(run: Run) -> AsyncIterator[Run]:
    try:
        async with asyncio.timeout(10):
            yield run
    finally:
        await run.fleet.stop()


@asynccontextmanager
async def started(run: Run, engines: int = 1) -> AsyncIterator[Run]:
    """When so many are ready."""
    async with running(run):
        await run.fleet.start()
        await until_begun(run, engines)
        yield run


async def until_begun(run: Run, engines: int) -> None:
    for _ in range(engines):
        await run.begun.engines.get()


# -- what they serve -------------------------------------------------------------------------------


async def test_files_are_read_once_and_anew_where_they_have_changed(tmp_path: Path) -> None:
    """While the server runs, a model's folder may be filled with its next version."""
    folder = Path(shutil.copytree(toy_model.FOLDER, tmp_path / "toy"))
    models, hello = ServedModels(), msgspec.structs.replace(HELLO, folder=str(folder))
    first, again = await models.served(hello), await models.served(hello)
    assert again.tokenizer is first.tokenizer
    (folder / "chat_template.jinja").write_text("another")
    changed = (await models.served(hello)).tokenizer
    said = [Message(role="user", content="Hi")]
    assert changed.encode_chat(said) == changed.encode("another", special=False)
    shutil.rmtree(folder)
    assert (await models.served(hello)).tokenizer is changed, "of an engine that is reached anew"


# -- ours ------------------------------------------------------------------------------------------


async def test_engines_of_ours_follow_one_by_one() -> None:
    """Each looks how much memory there is."""
    places = [Place("a"), Place("b", "hangs"), Place("c")]
    async with started(Run(*places)) as run:
        second = await places[1].made.get()
        assert run.serving == [0], "who starts the server waited for one"
        assert places[2].links == []
        second.hear(HELLO)
        await until_begun(run, 2)
        assert run.serving == [0, 1, 2]


async def test_one_that_never_starts_does_not_keep_others_from_starting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = [Place("a"), Place("b", always="fails"), Place("c")]
    async with started(Run(*places), engines=2) as run:
        assert run.serving == [0, 2]
        for _ in range(2):
            await places[1].made.get()
    assert caplog.text.count("b does not start: it has no memory; trying again") == 1


async def test_one_whose_supervisor_dies_before_it_was_ever_there_is_tried_anew() -> None:
    async with started(Run(Place("a"), Place("b", "breaks", "breaks")), engines=2) as run:
        assert run.serving == [0, 1]


async def test_each_engine_that_dies_is_replaced_and_the_others_go_on() -> None:
    places = [Place("a"), Place("b"), Place("c")]
    async with started(Run(*places), engines=3) as run:
        for number, place in enumerate(places):
            place.links[0].closed()
            assert run.serving == [other for other in range(3) if other != number]
            await until_begun(run, 1)
            assert run.serving == [0, 1, 2]
        assert [len(place.links) for place in places] == [2, 2, 2]


async def test_of_two_that_die_at_once_one_takes_the_spare_and_the_other_starts_anew() -> None:
    a = Place("a")
    async with started(Run(a, a.place._replace(name="b"), spare=True), engines=2) as run:
        spare = await until_prepared(a)
        for link in a.links:
            if link is not spare:
                link.closed()
        await until_begun(run, 2)
        assert run.serving == [0, 1]
        spare.closed()
        assert len(run.serving) == 1, "it has become one of them"


async def until_prepared(place: Place) -> Link:
    """The spare behind two engines. A link is told of when it is made, and when it is being prepared."""
    told = list[Link]()
    while not (len(place.links) == 3 and told.count(place.links[-1]) == 2):
        told.append(await place.made.get())
    return place.links[-1]


async def test_an_engine_that_leaves_is_replaced_and_said_to_have_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = Place("a"), Place("b")
    async with started(Run(a, b), engines=2) as run:
        a.links[0].hear(api.Leaving())
        a.links[0].closed()
        await until_begun(run, 1)
    assert "a goes away; another is to take its place" in caplog.text
    assert "has died" not in caplog.text


async def test_a_fleet_that_is_given_up_starts_nobody_again() -> None:
    a, b = Place("a"), Place("b")
    async with started(Run(a, b), engines=2) as run:
        run.fleet.give_up()
        await asyncio.sleep(0)
        assert run.serving == []
    assert [len(place.links) for place in (a, b)] == [1, 1]
    assert all(place.links[0].killed for place in (a, b))


# -- others' ---------------------------------------------------------------------------------------


def theirs(name: str, *faults: str, always: str = "", hello: api.Hello = HELLO) -> Place:
    return Place(name, *faults, always=always, ours=False, hello=hello)


async def test_whoever_starts_a_server_waits_for_the_first_of_others_engines() -> None:
    a, b, c = theirs("a", "hangs"), theirs("b", "fails"), theirs("c", "hangs")
    async with running(Run(a, b, c)) as run:
        assert await run.fleet.start() == HELLO
        assert run.serving == [1], "which failed at first"
        c.links[0].hear(HELLO)
        await until_begun(run, 2)
        assert run.serving == [1, 2]


async def test_others_engines_are_all_tried_at_once() -> None:
    a, b = theirs("a", "hangs"), theirs("b", "hangs")
    async with running(Run(a, b)) as run:
        starting = asyncio.create_task(run.fleet.start())
        await a.made.get()
        await b.made.get()
        b.links[0].hear(HELLO)
        await starting
        assert run.serving == [1]


async def test_engines_come_and_go() -> None:
    a, b, c = theirs("a"), theirs("b"), theirs("c")
    async with started(Run(a, b), engines=2) as run:
        await run.use(b, c)
        assert a.links[0].ended.is_set()
        await until_begun(run, 1)
        assert run.serving == [1, 2]
        await run.use(a, b, c)
        await until_begun(run, 1)
        assert run.serving == [1, 2, 3], "one that comes back is another"
        assert [len(each.links) for each in (a, b, c)] == [2, 1, 1]


async def test_one_that_is_used_no_more_is_not_started_again_and_what_it_says_is_not_heard() -> None:
    a, b = theirs("a"), theirs("b")
    async with started(Run(a, b), engines=2) as run:
        await run.use(a)
        b.links[0].hear(api.StepOutput(1, [], api.Stats()))
        b.links[0].closed()
        assert (run.serving, len(b.links)) == ([0], 1)


async def test_a_mistake_as_one_is_given_up_does_not_end_the_look_for_others_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is begun anew, and that one stands in nobody's way, nor in its own."""
    a, b, c = theirs("a"), theirs("b"), theirs("c")
    async with started(Run(a)) as run:
        with monkeypatch.context() as patch:
            patch.setattr(Supervisor, "leave", lambda supervisor: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                await run.use(b)
        await run.use(a, c)
        await until_begun(run, 2)
        assert a.links[0].ended.is_set()
        assert sorted(run.serving) == [2, 3]


@pytest.mark.parametrize("fault", ["hangs", "fails"])
async def test_one_that_has_not_come_yet_may_be_given_up(fault: str) -> None:
    a, b = theirs("a"), theirs("b", always=fault)
    async with started(Run(a, b)) as run:
        await b.made.get()
        await run.use(a)
        tried = len(b.links)
        b.links[-1].hear(HELLO)
        await asyncio.sleep(0)
        assert run.serving == [0]
        await run.use()
        assert run.serving == []
        assert len(b.links) == tried


async def test_an_engine_with_another_context_is_refused_with_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = theirs("a"), theirs("b", hello=msgspec.structs.replace(HELLO, context=99))
    async with started(Run(a)) as run:
        await run.use(a, b)
        for _ in range(2):
            await b.made.get()
        assert run.serving == [0]
        assert b.links[0].ended.is_set(), "its place is given back"
    why = 'b does not start: it serves "toy" with a context of 99, and others of this server with 4096'
    assert caplog.text.count(why) == 1


async def test_engines_of_another_model_serve_it_beside(caplog: pytest.LogCaptureFixture) -> None:
    a, b = theirs("a"), theirs("b", hello=msgspec.structs.replace(HELLO, model="other", context=99))
    async with started(Run(a, b), engines=2) as run:
        served = {known.name: known.served for known in run.hub.models}
        assert {name: one and one.context for name, one in served.items()} == {"toy": 4096, "other": 99}


async def test_a_model_that_is_let_go_at_once_is_looked_at_now_and_then() -> None:
    place = Place("a")
    run = Run(place.place._replace(model="toy"), keep_alive_s={"toy": 0.0})
    known = run.hub.models.find("toy")
    looks = list[str]()

    def look(model: str) -> bool:
        looks.append(model)
        return True

    run.hub.serving.wants = look  # type: ignore[method-assign]
    async with running(run):
        assert await run.fleet.start() is None, "nothing is loaded before somebody wants it"
        assert known.keeper is not None
        known.keeper.want()
        link = await place.made.get()
        while not run.serving:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(looks) <= 1, "else the event loop does nothing else"
        run.hub.serving.wants = lambda model: False  # type: ignore[method-assign]
        await link.ended.wait()
        assert run.serving == []


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_model_that_is_unloaded_while_it_is_loaded_goes_as_soon_as_it_is(*, pinned: bool) -> None:
    """Unless it is pinned since."""
    place = Place("a", "hangs")
    run = Run(place.place._replace(model="toy"), keep_alive_s={"toy": 1000.0})
    async with running(run):
        await run.fleet.start()
        keeper = run.keeper
        keeper.want()
        link = await place.made.get()
        keeper.unload()
        if pinned:
            keeper.pin(pinned=True)
        link.hear(HELLO)
        while keeper.state == "loading":  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert keeper.state == ("ready" if pinned else "unloading")
        if not pinned:
            await link.ended.wait()


async def test_a_model_that_is_wanted_while_it_is_being_unloaded_is_loaded_again() -> None:
    """By an admin, as no stream waits for it. It is another load."""
    place = Place("a")
    run = Run(place.place._replace(model="toy"), keep_alive_s={"toy": 1000.0})
    async with running(run):
        await run.fleet.start()
        keeper = run.keeper
        keeper.want()
        await until_begun(run, 1)
        keeper.unload()
        assert (keeper.state, keeper.is_wanted) == ("unloading", False)
        keeper.want()
        await until_begun(run, 1)
        assert len(place.links) == 2


# -- where they are --------------------------------------------------------------------------------


class Reading:
    """What is read of places, one after the other, and the last of it again and again."""

    def __init__(self, *found: Sequence[Place] | PlaceError) -> None:
        self._found = list(found)

    def __call__(self) -> list[EnginePlace]:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        if isinstance(found, PlaceError):
            raise found
        return [each.place for each in found]


async def test_a_list_of_engines_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_EVERY_S", 0)
    a, b = theirs("a"), theirs("b")
    async with started(Run(a)) as run:
        following = asyncio.create_task(run.fleet.follow(Reading([a], [a, b], [a, b], [b])))
        await until_begun(run, 1)
        await a.links[0].ended.wait()
        assert run.serving == [1]
        following.cancel()


async def test_a_list_that_cannot_be_read_changes_nothing_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_EVERY_S", 0)
    a, b = theirs("a"), theirs("b")
    gone, odd = PlaceError("the file is gone"), PlaceError("the file is odd")
    async with started(Run(a)) as run:
        reading = Reading(gone, gone, gone, odd, [a], gone, gone, [a, b])
        following = asyncio.create_task(run.fleet.follow(reading))
        await until_begun(run, 1)
        assert len(a.links) == 1
        following.cancel()
    told = "{}; the engines stay those that there are"
    assert caplog.text.count(told.format(gone)) == 2, "and again when it is so again"
    assert caplog.text.count(told.format(odd)) == 1
