"""Key files: what the command writes, what the server makes of it, and that no key is ever in one."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from realtime.__main__ import _quotas
from realtime.access import keyring
from realtime.access.key_file import HEADER, KeyFile, KeyFileError, digest, new_key, read
from realtime.access.keyring import Keyring
from realtime.config import Options
from realtime.keys_command import main
from realtime.tenants.allowance import Allowance, Holder

Capture = pytest.CaptureFixture[str]
DIGEST = "0" * 64
ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def command(file: Path, *words: str) -> int:
    return main([*words, "--file", str(file)], {})


def holder(ring: Keyring, key: str) -> Holder | None:
    return asyncio.run(ring.holder(key))


def added(file: Path, capsys: Capture, *words: str) -> str:
    """The key that was printed, alone."""
    assert command(file, "add", *words) == 0
    return capsys.readouterr().out.removesuffix("\n")


def test_a_key_is_long_random_and_says_whose_it_is() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"ms_[A-Za-z0-9]{43}", key) for key in keys)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [13, 400])
def test_a_limit_in_the_file_that_no_number_of_ours_has_is_refused(file: Path, digits: int) -> None:
    """One of hundreds of digits was taken, and failed whatever it was to limit."""
    limit = f"[tenants.a]\ntokens_per_minute = {'9' * digits}\n"
    file.write_text(f'[keys.a]\ntenant = "a"\ndigest = "{DIGEST}"\n{limit}')
    with pytest.raises(KeyFileError, match="tokens_per_minute"):
        read(file)


def test_add_prints_a_key_once_and_keeps_its_digest(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice")
    assert key not in file.read_text()
    assert digest(key) in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"], "nothing is left lying about"
    assert holder(Keyring(file), key) == Holder("alice", digest(key), name="alice")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{key} = "alice"\n[keys]\n', "unknown field `(a key)`"),
        ('[keys.{key}]\ntenant = "acme"\n', "missing required field `digest` - at `keys.(a key)`"),
        ('[keys.a]\ntenant = "a"\ndigest = "{digest}"\n{key} = 1\n', "field `(a key)` - at `keys.a`"),
    ],
)
def test_a_key_that_was_written_into_the_file_by_mistake_is_not_said(
    file: Path, text: str, says: str
) -> None:
    """What is said goes to the log."""
    key = new_key()
    file.write_text(text.format(key=key, digest=DIGEST))
    with pytest.raises(KeyFileError, match=re.escape(says)) as told:
        read(file)
    assert key not in str(told.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="nothing here is always full")
@pytest.mark.parametrize("words", [["list"], ["add", "bob"]])
def test_a_key_that_nobody_was_shown_is_none(file: Path, capsys: Capture, words: list[str]) -> None:
    """It was in the file, which was said not to have been written."""
    added(file, capsys, "alice")
    script = "import sys; from realtime.keys_command import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, *words, "--file", file],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "midstream: standard output cannot be written: No space left on device\n",
    )
    assert list(read(file).keys) == ["alice"]


def test_a_link_that_leads_to_itself_is_no_place_for_keys(file: Path, capsys: Capture) -> None:
    file.symlink_to(file)
    assert command(file, "add", "alice") == 1
    told = capsys.readouterr()
    assert (
        told.err
        == f"midstream: {file} is a link that leads to itself: name a file that is to hold the keys\n"
    )
    assert told.out == ""
    assert file.is_symlink()


def test_keys_of_one_tenant_share_what_it_may_take(file: Path, capsys: Capture) -> None:
    limits = (
        "--max-streams 3 --max-connections 4 --tokens-per-minute 500 --loads-per-hour 7 --prefill-tokens 60 "
        "--priority=-2:5"
    )
    first = added(file, capsys, "alice", "--tenant", "acme", *limits.split())
    second = added(file, capsys, "bob", "--tenant", "acme", "--max-streams", "9", "--admin")
    ring = Keyring(file)
    assert holder(ring, first) == Holder("acme", digest(first), name="alice")
    assert holder(ring, second) == Holder("acme", digest(second), admin=True, name="bob")
    assert ring.allowance("acme") == Allowance(
        max_streams=9,
        max_connections=4,
        tokens_per_minute=500,
        loads_per_hour=7,
        prefill_tokens=60,
        priority=(-2, 5),
    )
    assert ring.allowance("nobody") == Allowance()


def test_whoever_counts_what_tenants_take_hears_that_the_file_has_changed(
    file: Path, capsys: Capture
) -> None:
    """Who has a limit now had none before, and other gateways were told nothing."""
    added(file, capsys, "alice")
    ring, heard = Keyring(file), list[bool]()
    quotas = _quotas(Options(), ring)
    quotas.take("alice", streams=1)
    quotas.on_change = lambda: heard.append(True)
    asyncio.run(ring.reload())
    assert not heard
    added(file, capsys, "bob", "--tenant", "alice", "--max-streams", "3")
    asyncio.run(ring.reload())
    assert heard == [True]


def test_list_names_keys_and_shows_none(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice", "--tenant", "acme", "--max-streams", "3", "--priority", "2", "--admin")
    assert command(file, "list") == 0
    said = capsys.readouterr().out
    assert said == "alice  tenant=acme  admin  max_streams=3 priority=-8:2\n"
    assert key not in said


def test_a_key_for_the_metrics_is_that_and_no_admins(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "scraper", "--metrics")
    assert holder(Keyring(file), key) == Holder("scraper", digest(key), metrics=True, name="scraper")
    assert command(file, "list") == 0
    assert capsys.readouterr().out == "scraper  tenant=scraper  metrics\n"
    with pytest.raises(SystemExit):
        command(file, "add", "both", "--metrics", "--admin")
    file.write_text(file.read_text().replace("metrics = true", "metrics = true\nadmin = true"))
    with pytest.raises(KeyFileError, match="`admin` or `metrics`, not both"):
        read(file)


def test_a_key_that_is_for_the_metrics_now_holds_nothing_else_any_more(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    alice = holder(ring, key)
    assert alice is not None
    assert ring.holds(alice)
    file.write_text(file.read_text() + "metrics = true\n")
    asyncio.run(ring.reload())
    assert not ring.holds(alice)
    assert not ring.has_tenant("alice")


async def test_keys_are_read_though_all_threads_are_taken_that_look_up_names(
    file: Path, capsys: Capture
) -> None:
    added(file, capsys, "alice")
    ring, found = Keyring(file), threading.Event()
    key = added(file, capsys, "bob")
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    looking_up = loop.run_in_executor(None, found.wait)
    try:
        async with asyncio.timeout(10):
            assert await ring.holder(key) is not None
    finally:
        found.set()
        await looking_up


def test_keys_are_read_though_no_thread_can_be_started(
    file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each change: what was asked of a thread that was not there waited, and was done before all
    else when there was one, half a second for each time that a key had been shown meanwhile."""
    times = list[Path]()

    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def noted(path: Path) -> KeyFile:
        times.append(path)
        return read(path)

    key = added(file, capsys, "alice")
    ring = Keyring(file)
    other = added(file, capsys, "bob")
    monkeypatch.setattr(keyring, "read", noted)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        for _ in range(3):
            assert holder(ring, key) is not None
            assert holder(ring, other) is not None
    assert holder(ring, other) is not None
    assert len(times) == 1


def test_a_revoked_key_is_gone_and_its_tenant_with_the_last(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice", "--tenant", "acme", "--max-streams", "3")
    other = added(file, capsys, "bob", "--tenant", "acme")
    assert command(file, "revoke", "alice") == 0
    ring = Keyring(file)
    assert holder(ring, key) is None
    assert holder(ring, other) == Holder("acme", digest(other), name="bob")
    assert ring.allowance("acme").max_streams == 3
    assert command(file, "revoke", "bob") == 0
    assert (read(file).tenants, read(file).keys) == ({}, {})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "alice"], 'there is a key "alice" already'),
        (["revoke", "bob"], 'there is no key "bob"'),
    ],
)
def test_a_mistake_is_said_in_a_line_and_changes_nothing(
    file: Path, capsys: Capture, words: list[str], says: str
) -> None:
    added(file, capsys, "alice")
    before = file.read_bytes()
    assert command(file, *words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("midstream: ")
    assert says in captured.err
    assert file.read_bytes() == before


@pytest.mark.parametrize("words", [["list"], ["revoke", "alice"]])
def test_a_file_that_is_not_there_is_said_so(file: Path, capsys: Capture, words: list[str]) -> None:
    assert command(file, *words) == 1
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path, capsys: Capture) -> None:
    assert command(tmp_path / "no" / "keys.toml", "add", "alice") == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_what_is_no_file_is_not_replaced_by_one(file: Path, capsys: Capture) -> None:
    """As a device, which is everybody's."""
    os.mkfifo(file)
    assert command(file, "add", "alice") == 1
    assert f"{file} is no file" in capsys.readouterr().err
    assert file.is_fifo()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "al.ice"], "'al.ice' is no name"),
        (["add", "a", "--max-streams", "0"], "a whole number from 1 to 1000000000000"),
        (["add", "a", "--tokens-per-minute", "9" * 5000], "a whole number from 1 to 1000000000000"),
        (["add", "a", "--priority", "9"], "within -8:8"),
        (["add", "a", "--priority", "3:1"], "within -8:8"),
        (["add", "a", "--priority", "high"], "within -8:8"),
    ],
)
def test_words_that_are_not_right_are_refused(
    file: Path, capsys: Capture, words: list[str], says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(file, *words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
    assert not file.exists()


def test_the_file_may_be_named_by_the_environment_and_must_be_named(file: Path, capsys: Capture) -> None:
    assert main(["add", "alice"], {"MIDSTREAM_KEYS_FILE": str(file)}) == 0
    assert list(read(file).keys) == ["alice"]
    with pytest.raises(SystemExit):
        main(["list"], {})
    assert "say --file keys.toml, or set MIDSTREAM_KEYS_FILE" in capsys.readouterr().err


def test_a_file_that_others_were_let_read_stays_so_and_a_link_stays_a_link(
    file: Path, capsys: Capture
) -> None:
    added(file, capsys, "alice")
    file.chmod(0o640)
    link = file.with_name("link.toml")
    link.symlink_to(file)
    added(link, capsys, "bob")
    assert link.is_symlink()
    assert list(read(file).keys) == ["alice", "bob"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# -- the ring --------------------------------------------------------------------------------------


def test_a_running_server_learns_of_new_and_of_revoked_keys(file: Path, capsys: Capture) -> None:
    first = added(file, capsys, "alice", "--max-streams", "1")
    ring = Keyring(file)
    alice = holder(ring, first)
    assert alice is not None
    assert ring.holds(alice)
    second = added(file, capsys, "bob")
    assert holder(ring, second) == Holder("bob", digest(second), name="bob")
    command(file, "revoke", "alice")
    assert holder(ring, first) is None
    assert not ring.holds(alice)
    assert (ring.has_tenant("alice"), ring.has_tenant("bob")) == (False, True)


def test_whose_keys_there_are_is_known_without_a_look_at_every_key(
    file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked of each stream, every second."""
    added(file, capsys, "alice")
    ring = Keyring(file)
    monkeypatch.setattr(ring, "_keys", ring._keys._replace(holders={}))
    assert (ring.has_tenant("alice"), ring.has_tenant("bob")) == (True, False)


async def test_a_file_that_takes_long_is_waited_for_by_whoever_shows_a_key_and_read_once(
    file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand keys held everybody up for half a second."""
    first = added(file, capsys, "alice")
    ring = Keyring(file)
    second = added(file, capsys, "bob")
    command(file, "revoke", "alice")
    may_be_read, reads = threading.Event(), list[Path]()

    def slowly(path: Path) -> KeyFile:
        reads.append(path)
        assert may_be_read.wait(10), "it is read where nobody else has a turn"
        return read(path)

    monkeypatch.setattr(keyring, "read", slowly)
    shown = asyncio.gather(*map(ring.holder, (first, second)))
    await asyncio.sleep(0)
    assert ring.has_tenant("alice"), "until it is read"
    may_be_read.set()
    assert await shown == [None, Holder("bob", digest(second), name="bob")]
    assert reads == [file]


def test_a_key_that_went_to_another_tenant_is_not_held_any_more(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    alice = holder(ring, key)
    assert alice is not None
    file.write_text(file.read_text().replace('tenant = "alice"', 'tenant = "mallory"'))
    asyncio.run(ring.reload())
    assert not ring.holds(alice)


def test_a_file_that_became_unreadable_is_reported_once_and_changes_nothing(
    file: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    whole = file.read_text()
    for broken in ("", "[keys", "x = " + "[" * 20_000, None):
        caplog.clear()
        if broken is None:
            file.unlink()
        else:
            file.write_text(whole[:-20] + broken)
        for _ in range(3):
            assert holder(ring, key) is not None
        assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    file.write_text(whole)
    assert holder(ring, key) is not None


def test_a_pipe_in_the_files_place_is_not_waited_for(
    file: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever opened it would wait until somebody writes, in the server's event loop."""
    key = added(file, capsys, "alice")
    ring, whole = Keyring(file), file.read_text()
    file.unlink()
    os.mkfifo(file)
    assert holder(ring, key) is not None
    assert f"the key file {file} cannot be read: it is no file; the keys that were read" in caplog.text
    file.unlink()
    file.write_text(whole)
    assert holder(ring, key) is not None


def test_what_is_far_too_large_to_be_a_key_file_is_not_read(
    file: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """As a log that was written to its place: it would fill the memory, and hold up everybody meanwhile."""
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    os.truncate(file, 1 << 40)  # of which nothing is on the disk
    assert holder(ring, key) is not None
    assert f"the key file {file} cannot be read: File too large; the keys that were read" in caplog.text


def test_keys_that_another_program_says_at_the_start_hold(
    file: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    """As `--keys-file <(...)` in a shell."""
    key = added(file, capsys, "alice")
    with subprocess.Popen(["cat", file], stdout=subprocess.PIPE) as said:
        assert said.stdout is not None
        ring = Keyring(Path(f"/dev/fd/{said.stdout.fileno()}"))
        assert holder(ring, key) is not None
    assert "is no file: it is read to its end now, and never again" in caplog.text


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])  # the latter as some editors write it
def test_a_file_that_was_cut_short_anywhere_revokes_nobody(
    file: Path, capsys: Capture, caplog: pytest.LogCaptureFixture, line_end: str
) -> None:
    keys = [added(file, capsys, name) for name in ("alice", "bob", "carol")]
    whole = file.read_text().replace("\n", line_end)
    ring = Keyring(file)
    for length in range(len(whole) - len(line_end)):
        file.write_bytes(whole[:length].encode())
        assert all(holder(ring, key) for key in keys), f"of its first {length} characters"
    assert "still hold" in caplog.text
    file.write_bytes(whole.encode())
    assert all(holder(ring, key) for key in keys)


def test_the_last_key_can_be_revoked_and_others_added_after_it(file: Path, capsys: Capture) -> None:
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    assert command(file, "revoke", "alice") == 0
    assert holder(ring, key) is None
    assert not ring.has_tenant("alice")
    assert holder(ring, added(file, capsys, "bob")) is not None


def test_an_empty_file_can_be_begun_with(file: Path, capsys: Capture) -> None:
    file.touch()
    key = added(file, capsys, "alice")
    assert holder(Keyring(file), key) is not None


def test_a_file_that_could_not_be_opened_for_a_moment_is_read_when_it_can(
    file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the file descriptors were used up while a key was revoked."""
    key = added(file, capsys, "alice")
    ring = Keyring(file)
    command(file, "revoke", "alice")

    def no_descriptor(*_: object, **__: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", no_descriptor)
        assert holder(ring, key) is not None
    assert holder(ring, key) is None


def test_a_file_without_keys_lets_nobody_in_and_says_so(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_text("[keys]\n")
    ring = Keyring(file)
    assert holder(ring, "") is None
    assert "holds no key: nobody can connect" in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("keys", "is not TOML, at end of document"),
        ("[keys]\nx == 1", "is not TOML, at line 2, column 4"),
        ("[keys]\n\udcff", "is not TOML, at line 2"),
        ("[keys]\nx = " + "[" * 20_000, "is not TOML"),
        ("[keys]\nx = " + "1" * 5_000, "is not TOML"),
        ("[keys.a]\ntenant = 'a'", "`digest`"),
        ("[tenants.a]\n[tenants.b]\nmax_streams = 0", "at `tenants.b.max_streams`"),
        (f"[keys.a]\ntenant = 'a'\ndigest = '{DIGEST}'\n[keys.b]\ntenant = 'b'", "at `keys.b`"),
        ("[keys.\"CANARY\\n\"]\ntenant = 'a'", "is not right"),
        ('[keys.a]\n"` - at `$.tenants[...]" = 1', "at `keys.a`"),
        (f"[keys.a]\ntenant = 'a b'\ndigest = '{DIGEST}'", "tenant"),
        ("[keys.a]\ntenant = 'a'\ndigest = 'ms_CANARY'", "digest"),
        (f"[keys.a]\ntenant = 'a'\ndigest = '{DIGEST}'\nadmn = true", "admn"),
        ("[tenants.a]\nmax_stream = 3", "max_stream"),
        ("[tenants.a]\nmax_streams = 0", "max_streams"),
        ("[tenants.a]\npriority = [0, 9]", "priority"),
        ("[tenants.a]\npriority = [1, 0]", "priority"),
        ("[tenant.a]\n", "tenant"),
        ("", "one that is to hold no key says so by `[keys]`"),
        ("[tenants.a]\nmax_streams = 3", "one that is to hold no key says so by `[keys]`"),
        (f'[keys."a\\n"]\ntenant = "a"\ndigest = "{DIGEST}"', "keys"),
        (f'[keys.a]\ntenant = "a\\n"\ndigest = "{DIGEST}"', "tenant"),
        (f'[keys.a]\ntenant = "a"\ndigest = "{DIGEST}\\n"', "digest"),
        (
            "".join(f'[keys.{name}]\ntenant = "{name}"\ndigest = "{DIGEST}"\n' for name in "ab"),
            'as "a" and as "b"',
        ),
        (f"{HEADER}[keys]", "it lacks its last line, `# The end of the keys.`"),
    ],
)
def test_a_file_that_is_not_right_is_refused_where_it_is_wrong(file: Path, content: str, says: str) -> None:
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(KeyFileError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert says in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_many_who_change_the_file_at_once_lose_nothing(file: Path) -> None:
    names = [f"k{number}" for number in range(4)]
    words = [
        [sys.executable, "-m", "realtime.keys_command", "add", name, "--file", str(file)] for name in names
    ]
    adding = [
        subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for line in words
    ]
    assert [child.wait() for child in adding] == [0, 0, 0, 0]
    assert sorted(read(file).keys) == names
