"""The latch of a host: any obstacle leaves it pulled, and only a clear lifts it."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.supervisor.harness import until

from andon.core.latch import Pulled
from andon.host import home as homes
from andon.host import latch as latches
from andon.host import proc
from andon.host.latch import Latch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def latch(folder: Path) -> Latch:
    latch = Latch(str(folder))
    assert not latch.init().pulled
    return latch


def other(latch: Latch) -> Latch:
    """Another process: it knows only what is on the disk."""
    return Latch(latch.home)


def test_a_home_that_never_existed_is_not_pulled(folder: Path) -> None:
    assert not Latch(str(folder)).read().pulled
    assert not Latch(str(folder)).init().pulled
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert oct((folder / "latch").stat().st_mode & 0o777) == "0o600"


def test_a_pull_is_visible_to_every_process_in_two_places(latch: Latch, folder: Path) -> None:
    pulled = latch.pull("ana", "odd", "cli")
    assert (pulled.pulled, pulled.epoch, pulled.by, pulled.why) == (True, 1, "ana", "odd")
    assert pulled.unwritten == ""
    assert other(latch).read() == pulled
    (folder / "STOP").unlink()
    assert other(latch).read() == pulled


def test_the_first_use_may_be_a_pull(folder: Path) -> None:
    assert Latch(str(folder)).pull("ana").pulled
    assert Latch(str(folder)).init().by == "ana"


def test_a_second_pull_has_the_same_order_and_a_newer_epoch(latch: Latch) -> None:
    first, second = latch.pull("ana"), other(latch).pull("bo")
    assert (second.order, second.by, second.epoch) == (first.order, "ana", 2)
    same = other(latch).pull(order=first.order)
    assert same.epoch == 2


def test_a_pull_after_a_clear_is_another_order(latch: Latch) -> None:
    first = latch.pull("ana")
    assert not latch.clear(first.epoch, "bo", "fine").pulled
    assert not other(latch).read().pulled
    assert latch.pull("ana").order != first.order


def test_a_pull_cannot_be_lifted_by_a_process_that_has_not_seen_it(latch: Latch) -> None:
    seen = latch.pull("ana")
    other(latch).pull("bo")
    refused = latch.clear(seen.epoch, "cy", "fine")
    assert refused.pulled
    assert refused.refused == "it was pulled again since: epoch 2, you saw 1"


def test_a_stop_file_is_a_pull_and_deleting_it_lifts_nothing(latch: Latch, folder: Path) -> None:
    (folder / "STOP").touch()
    found = other(latch).read()
    assert (found.pulled, found.via) == (True, "STOP")
    (folder / "STOP").unlink()
    assert other(latch).read() == found
    assert latch.read() == found


def test_a_stop_file_touched_after_a_clear_pulls_again(latch: Latch, folder: Path) -> None:
    seen = latch.pull("ana")
    os.utime(folder / "STOP", ns=(1, 1))
    refused = latch.clear(seen.epoch, "bo", "fine")
    assert refused.refused == "STOP was touched since it was pulled"
    assert refused.pulled
    assert (folder / "STOP").exists()
    assert not latch.clear(refused.epoch, "bo", "fine").pulled
    assert not (folder / "STOP").exists()


def test_processes_that_find_a_stop_file_record_it_once(latch: Latch, folder: Path) -> None:
    (folder / "STOP").touch()
    readers = [threading.Thread(target=other(latch).read) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (folder / "latch").read_text().count("pulled") == 1


def test_a_pull_that_died_after_its_stop_file_keeps_its_order(latch: Latch, folder: Path) -> None:
    pulled = latch.pull("ana", "odd")
    (folder / "latch").write_text('{"cleared": 0}\n')
    found = other(latch).read()
    assert (found.order, found.by, found.why) == (pulled.order, "ana", "odd")


def binary(path: Path) -> None:
    path.write_bytes(os.urandom(300) + b"\n")


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 34)  # a hole of 16 GB


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'{"cleared": 7')


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path) -> None:
    path.unlink()


HOSTILE: list[Callable[[Path], None]] = [
    binary, huge, torn, directory, symlink, fifo, empty, missing,
]  # fmt: skip


@pytest.mark.parametrize("spoil", HOSTILE)
def test_an_unreadable_latch_is_pulled_and_says_why(
    spoil: Callable[[Path], None], latch: Latch, folder: Path
) -> None:
    spoil(folder / "latch")
    for reader in (latch, other(latch)):
        found = reader.read()
        assert found.pulled
        assert found.unreadable.startswith(f"{folder}/latch")
    assert other(latch).pull("ana").pulled


@pytest.mark.parametrize("spoil", [binary, huge, torn, empty, missing])
def test_an_unreadable_latch_can_be_lifted_once_it_was_seen(
    spoil: Callable[[Path], None], latch: Latch, folder: Path
) -> None:
    spoil(folder / "latch")
    seen = other(latch).read()
    assert not other(latch).clear(seen.epoch, "ana", "looked at it").pulled
    assert not other(latch).read().pulled


@pytest.mark.parametrize("spoil", [binary, directory, symlink, fifo])
def test_a_stop_file_of_any_file_type_pulls_the_latch(
    spoil: Callable[[Path], None], latch: Latch, folder: Path
) -> None:
    (folder / "STOP").touch()
    spoil(folder / "STOP")
    seen = other(latch).read()
    assert seen.pulled
    assert not latch.clear(seen.epoch, "ana", "fine").pulled
    assert not latch.read().pulled


def test_a_stop_file_that_cannot_be_removed_is_not_lifted(latch: Latch, folder: Path) -> None:
    (folder / "STOP").touch()
    seen = latch.read()
    (folder / "STOP.lifted").mkdir()
    (folder / "STOP.lifted" / "in the way").touch()
    found = latch.clear(seen.epoch, "ana", "fine")
    assert found.pulled
    assert "cannot be removed" in found.refused


def test_a_home_whose_folder_was_moved_away_is_pulled(latch: Latch, folder: Path) -> None:
    folder.rename(folder.with_name("away"))
    assert latch.read().unreadable == f"{folder}/latch is missing"


def test_a_home_that_is_a_file_is_pulled(folder: Path) -> None:
    folder.write_text("")
    assert Latch(str(folder)).init().pulled
    assert Latch(str(folder)).read().pulled
    assert Latch(str(folder)).pull("ana").unwritten


UNPRIVILEGED = """
import os, sys
from andon.host import latch as latches
from andon.host.latch import Latch
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(eval(sys.argv[2], {"latch": Latch(sys.argv[1])}))
"""


def in_new_process(code: str, home: Path, expression: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, str(home), expression],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


def test_a_home_without_read_permission_is_pulled(latch: Latch, folder: Path) -> None:
    folder.chmod(0)
    try:
        assert "Permission denied" in in_new_process(
            UNPRIVILEGED, folder, "latch.read().unreadable"
        )
        assert "Permission denied" in in_new_process(UNPRIVILEGED, folder, "latch.pull().unwritten")
        assert in_new_process(UNPRIVILEGED, folder, "latch.init().pulled") == "True"
    finally:
        folder.chmod(0o700)


FULL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
from andon.host import latch as latches
from andon.host.latch import Latch
latch = Latch(sys.argv[1])
"""


def test_a_full_disk_has_room_for_the_stop_file(latch: Latch, folder: Path) -> None:
    code = FULL + "found = latch.pull('ana'); print(found.pulled, found.unwritten)"
    assert in_new_process(code, folder, "0") == "True"
    assert latch.read().via == "STOP"


def test_a_pull_of_which_only_the_stop_file_is_left_is_written_when_that_is_on_disk(
    latch: Latch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "latch").unlink()
    (folder / "latch").mkdir()
    synced: list[str] = []
    monkeypatch.setattr(latches, "_sync_folder", synced.append)
    assert not latch.pull("ana").unwritten
    assert synced == [str(folder)]

    def refuses(path: str) -> None:
        raise OSError("it cannot be synced")

    monkeypatch.setattr(latches, "_sync_folder", refuses)
    assert latch.pull("ben").unwritten


def test_a_clear_that_found_no_room_lifts_nothing(latch: Latch, folder: Path) -> None:
    epoch = latch.pull("ana").epoch
    room = (folder / "latch").stat().st_size + 9
    code = FULL + f"found = latch.clear({epoch}); print(found.pulled, found.refused)"
    assert in_new_process(code, folder, str(room)).startswith("True ")
    assert "not complete" in latch.read().unreadable
    assert (folder / "STOP").exists()


def test_a_disk_without_room_for_a_new_file_uses_the_prepared_one(
    latch: Latch, folder: Path
) -> None:
    """No file descriptor is left, which stands for no inode: the existing file is renamed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        latch.pull("ana")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (folder / "STOP").exists()
    assert latch.read().pulled


def test_a_pull_does_not_wait_for_a_frozen_owner_of_the_lock(latch: Latch, folder: Path) -> None:
    """The clear during which the owner was frozen lifts nothing when it continues."""
    seen = latch.pull("ana")
    freeze = (
        "import os, signal, sys; from andon.host import latch\n"
        "home, epoch = sys.argv[1], int(sys.argv[2])\n"
        "append = latch.Latch._append\n"
        "def slow(self, verdict):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP); return append(self, verdict)\n"
        "latch.Latch._append = slow\n"
        "print(latch.Latch(home).clear(epoch).pulled)\n"
    )
    clearing = subprocess.Popen(
        [sys.executable, "-c", freeze, str(folder), str(seen.epoch)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.waitid(os.P_PID, clearing.pid, os.WSTOPPED)
    again = other(latch).pull("bo")
    assert again.epoch == seen.epoch + 1
    clearing.send_signal(signal.SIGCONT)
    assert clearing.communicate(timeout=60)[0] == "True\n"
    assert other(latch).read().order == seen.order


def _clear_for_ever(home: str, ended: "multiprocessing.synchronize.Event") -> None:
    latch = Latch(home)
    while not ended.is_set():
        found = latch.read()
        if found.pulled:
            latch.clear(found.epoch, "clearer", "racing")


def test_an_acknowledged_pull_holds_until_it_is_seen(latch: Latch) -> None:
    """Pulls race clears: no pull is lifted by a clear of an older epoch."""
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    clearers = [context.Process(target=_clear_for_ever, args=(latch.home, ended)) for _ in (1, 2)]
    for clearer in clearers:
        clearer.start()
    answered = [latch.pull("ana")]
    until(lambda: not latch.read().pulled, "the first clear: both race from here on")
    answered += [latch.pull("ana") for _ in range(59)]
    ended.set()
    for clearer in clearers:
        clearer.join()
    lines = Path(latch.path).read_text().splitlines()
    assert [pull.epoch for pull in answered] == list(range(1, 61))
    cleared = [line for line in lines if '"cleared"' in line and "racing" in line]
    for pull in answered:
        own = next(n for n, line in enumerate(lines) if f'"pulled": {pull.epoch},' in line)
        lifting = [n for n, line in enumerate(lines) if f'"cleared": {pull.epoch},' in line]
        assert all(n > own for n in lifting)
        assert len(lifting) <= 1
    assert cleared
    assert other(latch).read().pulled == (f'"cleared": {answered[-1].epoch},' not in lines[-1])


# ── home ──────────────────────────────────────────────────────────────────────────────────────


def test_home_is_the_configured_folder_or_else_the_users(tmp_path: Path) -> None:
    assert homes.find({"ANDON_HOME": str(tmp_path / "a"), "HOME": "/x"}) == str(tmp_path / "a")
    assert homes.find({"HOME": str(tmp_path)}) == str(tmp_path / ".andon")
    assert homes.find({})  # no HOME at all


def test_a_home_that_cannot_be_created_is_in_tmp(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert homes.find({"HOME": str(tmp_path / "file")}) == f"/tmp/andon-{os.geteuid()}"


def test_an_existing_home_is_kept_even_if_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".andon").mkdir(0o500)
    assert homes.find({"HOME": str(tmp_path)}) == str(tmp_path / ".andon")


def test_live_processes_are_listed_and_dead_ones_are_swept(latch: Latch, folder: Path) -> None:
    me = homes.this_process("me", "supervisor", socket=homes.socket_path(str(folder), "me"))
    dead = me._replace(id="dead", start_ticks=me.start_ticks + 1)
    rebooted = me._replace(id="rebooted", boot="another")
    contained = dead._replace(id="contained", namespace="pid:[1]")
    for entry in (me, dead, rebooted, contained):
        homes.register(str(folder), entry)
    (folder / "run" / "rubbish.json").write_bytes(os.urandom(50))
    (folder / "run" / "list.json").write_text("[1]")
    assert {entry.id for entry in homes.live(str(folder))} == {"me", "contained"}
    assert {entry.id for entry in homes.sweep(str(folder))} == {"dead", "rebooted"}
    assert {entry.id for entry in homes.entries(str(folder))} == {"me", "contained"}
    assert oct((folder / "run" / "me.json").stat().st_mode & 0o777) == "0o600"
    homes.unregister(str(folder), "me")
    assert not [entry for entry in homes.live(str(folder)) if entry.id == "me"]


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["/bin/true"])
    ticks = proc.start_ticks(child.pid)
    assert ticks
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not proc.alive(child.pid, ticks)
    child.wait()


def test_a_verdict_is_a_plain_value() -> None:
    assert Pulled(pulled=True)._asdict()["pulled"] is True


def test_a_file_that_does_not_fit_is_not_written_at_all(tmp_path: Path) -> None:
    """A disk that fills up accepts the first part of a write without an error."""
    code = (
        "import resource, sys\n"
        "from andon.host import home\n"
        "home.write(sys.argv[1], b'before')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "home.write(sys.argv[1], b'after' * 100)\n"
    )
    path = tmp_path / "state"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert b"no space left" in done.stderr
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("state", b"before")]
