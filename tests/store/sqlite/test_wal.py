"""A write-ahead log that is damaged in its middle is refused; one that ends early is not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from andon.errors import StoreError
from andon.store import open_store
from andon.store.sqlite.wal import Wal

FRAME = 24 + 4096
TRANSACTIONS = 8


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The WAL of a store that no process has open; its last transactions have one row each."""
    found = written(tmp_path, "INSERT INTO own VALUES (?)")
    assert found.stat().st_size == 32 + TRANSACTIONS * FRAME
    return found


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """The same with rows that take several pages."""
    return written(tmp_path, "INSERT INTO own SELECT randomblob(20000) || ?")


def written(folder: Path, insert: str) -> Path:
    (folder / "first").mkdir()
    path = folder / "first" / "andon.db"
    store = open_store(f"sqlite:///{path}")
    db = apsw.Connection(str(path))
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE own (number)")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for number in range(TRANSACTIONS):
        db.execute(insert, (number,))
    for name in ("andon.db", "andon.db-wal"):
        shutil.copy(folder / "first" / name, folder / name)
    db.close()
    store.close()
    return folder / "andon.db-wal"


def ends(log: Path) -> list[int]:
    """The frames with which transactions end."""
    found = log.read_bytes()
    return [n for n in range(len(found) // FRAME) if any(found[frame(n, 4) : frame(n, 8)])]


def change(log: Path, hurt: Callable[[bytearray], None]) -> None:
    found = bytearray(log.read_bytes())
    hurt(found)
    log.write_bytes(found)


def flip(place: int) -> Callable[[bytearray], None]:
    def hurt(found: bytearray) -> None:
        found[place] ^= 4

    return hurt


def rows(log: Path) -> int:
    path = log.with_name("andon.db")
    open_store(f"sqlite:///{path}").close()
    db = apsw.Connection(str(path))
    found: int = db.execute("SELECT count(*) FROM own").get
    db.close()
    return found


def frame(number: int, byte: int) -> int:
    return 32 + number * FRAME + byte


@pytest.mark.parametrize(
    "place",
    [0, 3, 17, 30, frame(0, 500), frame(3, 2), frame(3, 6), frame(3, 9), frame(3, 17), frame(3, 99),
     frame(TRANSACTIONS - 2, 99)],
)  # fmt: skip
def test_a_flipped_bit_before_committed_transactions_is_refused(log: Path, place: int) -> None:
    change(log, flip(place))
    before = log.read_bytes()
    with pytest.raises(StoreError, match=r"andon\.db-wal: is damaged at frame \d"):
        rows(log)
    assert log.read_bytes() == before, "nothing was changed"


@pytest.mark.parametrize("size", [32, 4096, 2 * FRAME])
def test_a_log_whose_beginning_is_zeroed_is_refused(log: Path, size: int) -> None:
    change(log, lambda found: found.__setitem__(slice(size), bytes(size)))
    with pytest.raises(StoreError, match=r"andon\.db-wal: is damaged at frame 1:"):
        rows(log)


def test_a_log_that_is_all_zeroes_is_empty(log: Path) -> None:
    """It was extended, and then the power failed."""
    log.write_bytes(bytes(log.stat().st_size))
    assert rows(log) == 0


def test_a_flipped_bit_in_any_frame_of_a_committed_transaction_is_refused(long_log: Path) -> None:
    first, last = ends(long_log)[2] + 1, ends(long_log)[3]
    assert last - first >= 4
    whole = long_log.read_bytes()
    for number in range(first, last + 1):
        change(long_log, flip(frame(number, 99)))
        with pytest.raises(StoreError, match=f"is damaged at frame {number + 1}:"):
            rows(long_log)
        long_log.write_bytes(whole)


def test_any_frame_of_an_unfinished_transaction_may_be_missing(long_log: Path) -> None:
    whole, database = long_log.read_bytes(), long_log.with_name("andon.db").read_bytes()
    for number in range(ends(long_log)[-2] + 1, ends(long_log)[-1] + 1):
        change(long_log, flip(frame(number, 99)))
        assert rows(long_log) == TRANSACTIONS - 1
        long_log.write_bytes(whole)
        long_log.with_name("andon.db").write_bytes(database)
        long_log.with_name("andon.db-shm").unlink(missing_ok=True)


def test_an_intact_log_is_opened(log: Path) -> None:
    assert rows(log) == TRANSACTIONS


def test_a_transaction_that_a_power_failure_interrupted_is_left_out(log: Path) -> None:
    change(log, flip(frame(TRANSACTIONS - 1, 99)))
    assert rows(log) == TRANSACTIONS - 1


@pytest.mark.parametrize("size", [0, 20, 32, frame(2, 0), frame(2, 100), frame(5, 24)])
def test_a_log_that_ends_early_is_opened(log: Path, size: int) -> None:
    change(log, lambda found: found.__delitem__(slice(size, None)))
    assert rows(log) == max(0, (size - 32) // FRAME)


def test_frames_of_an_earlier_log_behind_the_current_one_are_no_damage(log: Path) -> None:
    """A WAL that was restarted keeps its size; the frames behind its end have other salts."""
    path = log.with_name("andon.db")
    db = apsw.Connection(str(path))
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("SELECT * FROM own").fetchall()
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    db.execute("INSERT INTO own VALUES (9)")
    found = log.read_bytes()
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.close()
    assert log.read_bytes() == found
    assert len(found) == 32 + TRANSACTIONS * FRAME
    assert rows(log) == TRANSACTIONS + 1


@pytest.mark.parametrize("read", range(TRANSACTIONS))
def test_whole_frames_that_sqlite_did_not_read_are_no_damage(log: Path, read: int) -> None:
    """They are just being written, or are in the database and about to be overwritten."""
    Wal(str(log)).refuse_lost(read)


def test_remains_of_abandoned_transactions_are_no_damage(log: Path) -> None:
    """Two that failed at their sync, the longer one first; the one after them is shorter."""
    remains = bytearray(log.read_bytes())
    # The third frame follows from another second one than is there now, and so on to the end.
    for number in (2, 4, 6):
        remains[frame(number, 16) : frame(number, 24)] = bytes(8)
        remains[frame(number, 50)] ^= 1
        remains[frame(number + 1, 60)] ^= 1
    log.write_bytes(remains)
    assert rows(log) == 2


def test_a_concurrent_commit_of_another_process_is_no_damage(log: Path) -> None:
    """The log was read before, and restarted since."""
    seen = Wal(str(log))
    assert seen.is_current()
    change(log, flip(20))
    assert not seen.is_current()
    log.unlink()
    assert Wal(str(log)).is_current()


@pytest.mark.parametrize("new", [1, 14, 16, 20, 24, 28, 31])
@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("kept", [True, False])
def test_a_log_that_was_cut_off_while_it_restarted_is_no_damage(
    tmp_path: Path, new: int, by: int, kept: bool
) -> None:
    """A part of its header is new; the rest is in the database. If it is not, that is damage.

    A process that has not read the log, as another has it open, does not know its number.
    """
    db, log = apsw.Connection(str(tmp_path / "andon.db")), tmp_path / "andon.db-wal"
    for one in ("PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 0", "CREATE TABLE t (x)"):
        db.execute(one).fetchall()
    for n in range(60):
        db.execute("INSERT INTO t VALUES (?)", (n,))
        if n % 20 == 19 and n < 50:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    other = apsw.Connection(str(tmp_path / "andon.db"))
    other.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    old, before = log.read_bytes(), (tmp_path / "andon.db").read_bytes()
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    (db, other)[by].execute("INSERT INTO t VALUES (60)")
    whole = log.read_bytes()
    anew = bytearray(whole[:new] + old[new:])
    anew[0] ^= new == 1  # else nothing of it would be new
    log.write_bytes(anew)
    # The rest of a header may be the same in both: then it is not cut off.
    if kept or anew[:32] in (old[:32], whole[:32]):
        Wal(str(log)).refuse_lost(0)
    else:
        (tmp_path / "andon.db").write_bytes(before)
        with pytest.raises(StoreError, match="is damaged at frame 1"):
            Wal(str(log)).refuse_lost(0)
    db.close()
    other.close()
