"""Connects to a PostgreSQL server and translates its errors.

Both ends must notice a dead network within seconds: the client to continue elsewhere, the server to
release the client's locks. Behind a pooler that gives every transaction another server connection
(`?andon_pooler=1` in the URL) a connection keeps no state: no prepared statement, no setting, no
lock, no LISTEN.
"""

import struct
import time
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from andon.errors import AndonError, BadInput, StoreError, StoreFull, StoreUnavailable
from andon.store.sql.runs import NUL

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_VERSION = 140000
# A program that holds a lock longer than this is stuck, not busy.
LOCK_SECONDS = 20
# A writer that is stopped in the middle of a transaction must not block those that take over.
IDLE_SECONDS = 10
# A writer that is stopped in the middle of a pipeline does not look idle to the server; from
# version 17 on the server can still end it. Longer than LOCK_SECONDS.
TRANSACTION_SECONDS = 30

_PARAMETERS: dict[str, Any] = {
    "application_name": "andon",
    "client_encoding": "utf8",
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SETTINGS = {
    "default_transaction_isolation": "read\\ committed",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "jit": "off",
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}

# The writer's few statements never change. Planning them anew costs more than executing them, and
# each has its index, whatever the statistics say about a queue that was empty a minute ago. (A
# listing needs its own plan for every filter.)
WRITER_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}

# Errors with which one message may spoil the batch it shares: errors of the server, and text or
# numbers that the driver cannot send at all.
SPOILED = (psycopg.Error, UnicodeEncodeError, OverflowError, struct.error, StoreError)
# The server rolled back because of another transaction; retrying the same batch will do.
CONTENDED = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

# Connections that long-running processes leave free, so that an order to stop gets through: enough
# for two commands at once, each with one connection that reads and writes and one that listens.
RESERVED = 4
# How long such a command keeps trying if those connections are taken too.
RESERVED_SECONDS = 10.0
AGAIN_SECONDS = 0.05
ROOM = (
    "End what is not needed, or raise max_connections (or the limit of the role or database); "
    "docs/guides/postgresql.md has how many a worker needs."
)
# While connecting, libpq gives only the text of an error.
_FULL = ("too many clients", "too many connections", "remaining connection slots")
# The narrowest of the limits of the server, the role and the database. The view hides columns of
# other users' processes, so all of those count, which can only overestimate.
_ROOM = b"""
WITH here AS (
  SELECT datid, usesysid FROM pg_stat_activity
   WHERE usesysid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
), me AS (
  SELECT r.oid, r.rolconnlimit, d.oid AS dat, d.datconnlimit, r.rolsuper
    FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()
), limits (most, used, of) AS (
  SELECT current_setting('max_connections')::int
         - current_setting('superuser_reserved_connections')::int
         - coalesce(current_setting('reserved_connections', true)::int, 0),
         (SELECT count(*) FROM here), 'this server has for everybody'
  UNION ALL
  SELECT rolconnlimit, (SELECT count(*) FROM here WHERE usesysid = oid), 'this role may have'
    FROM me WHERE rolconnlimit >= 0 AND NOT rolsuper
  UNION ALL
  SELECT datconnlimit, (SELECT count(*) FROM here WHERE datid = dat), 'this database may have'
    FROM me WHERE datconnlimit >= 0 AND NOT rolsuper
)
SELECT most, used::int, of FROM limits ORDER BY most - used LIMIT 1
"""

# Reasons for StoreUnavailable, by the first characters of SQLSTATE.
_AWAY = {
    "08": "the connection was lost",
    "25006": "the server is a read-only standby",
    "25P03": f"the transaction was idle for over {IDLE_SECONDS} s",
    "25P04": f"the transaction took over {TRANSACTION_SECONDS} s",
    "53": "the server has run out of a resource",
    "55P03": f"another connection has held a lock for over {LOCK_SECONDS} s",
    "57": "the server is stopping, starting or ended the connection",
    "58": "the server's disk or system failed",
    "XX": "the server failed",
}
_POOLED = ("26000", "42P05")  # a prepared statement is missing, or another client's is there


def _unfit(error: Exception, state: str, text: str) -> str | None:
    if "NUL (0x00)" in text or state == "22P05":
        return NUL
    if isinstance(error, UnicodeEncodeError):
        return f"the text is not Unicode: {text}"
    if isinstance(error, (OverflowError, struct.error)) or state == "22003":
        return f"a number is too large for the database: {text}"
    return None


def _away(error: Exception, state: str) -> str | None:
    if isinstance(error, CONTENDED):
        return "other transactions kept changing the same rows"
    if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return "the connection was lost"
    return next((why for start, why in _AWAY.items() if state.startswith(start)), None)


class ConnectionCount(NamedTuple):
    """How many connections a limit allows (`most`) and how many are open (`used`)."""

    most: int
    used: int
    of: str

    @property
    def left(self) -> int:
        return self.most - self.used


class Connector:
    """Opens connections to one database."""

    def __init__(self, url: str, *, reserved: bool = False) -> None:
        self._reserved = reserved  # it may use the connections that are kept free
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.pooled = options.pop("andon_pooler", "0") not in ("", "0", "false")
        try:
            rest = urlencode(options, quote_via=quote)
            given = conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
        except psycopg.Error as error:
            # The part before the last @ may hold a password.
            raise BadInput(f"store {url.rpartition('@')[2]}: {error}".strip()) from error
        self._given: dict[str, Any] = given
        self.name = f"postgresql://{given.get('host', '')}/{given.get('dbname', '')}"

    def connect(self, *, again: bool = False, besides: int = 0, **settings: str) -> Connection:
        """Open a connection in autocommit mode; `settings` last as long as it does.

        Raises StoreFull if it would take a connection kept free for orders. `again`: it replaces a
        lost one, which skips that check. `besides`: how many more connections its process needs.
        """
        parameters = {**_PARAMETERS, **self._given}
        if not self.pooled:
            words = [f"-c {name}={value}" for name, value in {**_SETTINGS, **settings}.items()]
            parameters["options"] = " ".join([*words, self._given.get("options") or ""]).strip()
        try:
            db = self._tried(parameters)
        except psycopg.Error as error:
            if _is_full(error):
                raise StoreFull(f"{self.name}: {_sentence(_last(str(error)))} {ROOM}") from error
            advice = (
                "Check that the server is running, and the host, user and password of ANDON_STORE."
            )
            if "startup parameter" in str(error):
                advice = "There is a pooler in between: add ?andon_pooler=1 to the URL."
            raise StoreUnavailable(
                f"{self.name}: cannot connect: {_sentence(str(error))} {advice}"
            ) from error
        try:
            self._refuse_unfit(db)
            if not (self._reserved or again or self.pooled):
                self._refuse_full(db, besides)
        except BaseException:
            db.close()
            raise
        # One type for all integers: else psycopg would prepare another statement for each size.
        db.adapters.register_dumper(int, Int8Dumper)
        return db

    def begin(self) -> bytes:
        """Return the SQL with which the writer begins a transaction."""
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if self.pooled:  # otherwise the connection itself has these settings
            for name, value in {"lock_timeout": f"{LOCK_SECONDS}s", **WRITER_SETTINGS}.items():
                begin += f"; SET LOCAL {name} = '{value}'"
        return begin.encode()

    def _tried(self, parameters: dict[str, Any]) -> Connection:
        """Connect; a command that gives an order retries until another process frees a place."""
        until = time.monotonic() + (RESERVED_SECONDS if self._reserved else 0.0)
        while True:
            try:
                return psycopg.connect(
                    **parameters, autocommit=True, prepare_threshold=None if self.pooled else 1
                )
            except psycopg.Error as error:
                if not _is_full(error) or time.monotonic() > until:
                    raise
            time.sleep(AGAIN_SECONDS)

    def room(self, db: Connection) -> ConnectionCount:
        """Return how many connections the server allows, and how many are open."""
        [row] = db.execute(_ROOM).fetchall()
        return ConnectionCount(*row)

    def _refuse_full(self, db: Connection, besides: int) -> None:
        try:
            room = self.room(db)
        except psycopg.Error:  # the view is not PostgreSQL's own, so the count is unknown
            return
        if room.left - besides < RESERVED:
            raise StoreFull(
                f"{self.name}: too many clients: {room.used - 1} of the {room.most} connections "
                f"that {room.of} are in use, and {RESERVED} are kept free for orders. {ROOM}"
            )

    def _refuse_unfit(self, db: Connection) -> None:
        encoding = db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.name}: the database has the encoding {encoding}, which cannot hold all "
                "text; expected UTF8. Create another one: CREATE DATABASE … ENCODING 'UTF8' "
                "TEMPLATE template0"
            )
        if db.info.server_version < OLDEST_VERSION:
            raise StoreError(
                f"{self.name}: expected PostgreSQL {OLDEST_VERSION // 10000} or newer, found "
                f"{db.info.server_version // 10000}. Upgrade the server."
            )

    def meaning(self, error: Exception) -> AndonError:
        """Translate an error of the driver into one of andon's."""
        state = getattr(error, "sqlstate", None) or ""
        text = str(error).strip()
        if isinstance(error, AndonError):
            return error
        if words := _unfit(error, state, text):
            return BadInput(words)
        if words := _away(error, state):
            return StoreUnavailable(f"{self.name}: {words}: {text}")
        if state in _POOLED and not self.pooled:
            text += ". Is there a pooler in between? Then add ?andon_pooler=1 to the URL"
        if state == "42501":
            role = self._given.get("user") or "of ANDON_STORE"
            text += (
                f". The role {role} may not write: use the one that owns andon's tables, or, if "
                "there are none yet, ask for: GRANT CREATE ON DATABASE … TO your role. With SELECT "
                "on them it can look: andon ps, show, logs, events, receipts, verify"
            )
        return StoreError(f"{self.name}: {type(error).__name__}: {text}")


def _is_full(error: psycopg.Error) -> bool:
    return any(words in str(error) for words in _FULL)


def _last(text: str) -> str:
    """Return the server's own words, without the driver's list of attempts."""
    return text.strip().rpartition("FATAL:")[2].strip()


def _sentence(text: str) -> str:
    """End the driver's text with a full stop, unless it already ends with . ? or !"""
    text = text.strip()
    return text if text.endswith(("?", ".", "!")) else f"{text}."


def refuse_ended(db: Connection, mark: str) -> None:
    """Raise BadInput if the caller ended the transaction, which splits what belongs together."""
    status = TransactionStatus.UNKNOWN if db.closed else db.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise BadInput(
            "a statement of this transaction failed and the error was caught; nothing was written. "
            "Let the error pass, or put the statement into `with connection.transaction():`"
        )
    open_ = status == TransactionStatus.INTRANS and db.execute(
        "SELECT current_setting('andon.mark', true)"
    ).fetchone() == (mark,)
    if not open_:
        raise BadInput(
            "the connection's transaction was ended by the code that borrowed it; its result was "
            "not written down. Leave commit, rollback and close to andon."
        )
