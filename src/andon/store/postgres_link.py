"""How a PostgreSQL server is reached, and what its errors mean.

A dead network must be noticed in seconds by both ends: by us, to go on elsewhere; by the server,
to let go of our locks. Behind a pooler that gives every transaction another server connection
(`?andon_pooler=1` in the URL) nothing is kept in a connection: no prepared statement, no setting,
no lock, no LISTEN.
"""

import struct
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from andon.errors import AndonError, BadInput, StoreError, StoreUnavailable
from andon.store.sql import NUL

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
    from psycopg.types.numeric import Int8Dumper
except ImportError as missing:
    raise StoreError(
        f"PostgreSQL needs the driver psycopg 3 ({missing}). Run: pip install 'andon[postgres]'"
    ) from missing

Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_VERSION = 140000
# A lock that somebody holds longer than this is a stuck program, not a busy one.
LOCK_SECONDS = 20
# A writer that is stopped in the middle of a transaction must not hold up those who take over.
IDLE_SECONDS = 10
# One that is stopped in the middle of a pipeline is not idle to the server; from version 17 on it
# can be ended all the same. Longer than the wait for a lock.
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

# The few statements of the writer are the same for ever: planning them anew costs more than
# executing them, and each of them has its index, whatever the statistics say of a queue that was
# empty a minute ago. (A listing needs its own plan for every filter.)
WRITER_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}

# What one message may do to the batch it shares: errors of the server, and text or numbers that
# cannot be handed to it at all.
SPOILED = (psycopg.Error, UnicodeEncodeError, OverflowError, struct.error, StoreError)
# The server rolled back because of somebody else; the same again will do.
CONTENDED = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)

# By the first characters of SQLSTATE.
_AWAY = {
    "08": "the connection was lost",
    "25006": "the server is a read-only standby",
    "25P03": f"the transaction stood still for over {IDLE_SECONDS} s",
    "25P04": f"the transaction took over {TRANSACTION_SECONDS} s",
    "53": "the server has run out of something",
    "55P03": f"somebody has held a lock for over {LOCK_SECONDS} s",
    "57": "the server is stopping, starting or ended the connection",
    "58": "the server's disk or system failed",
    "XX": "the server failed",
}
_POOLED = ("26000", "42P05")  # a prepared statement is not there, or somebody else's is


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
        return "others kept changing the same rows"
    if not state and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return "the connection was lost"
    return next((why for start, why in _AWAY.items() if state.startswith(start)), None)


class Link:
    """The way to one database."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.pooled = options.pop("andon_pooler", "0") not in ("", "0", "false")
        try:
            rest = urlencode(options, quote_via=quote)
            given = conninfo_to_dict(urlunsplit(parts._replace(query=rest)))
        except psycopg.Error as error:
            # What stands before the last @ may be a password.
            raise BadInput(f"store {url.rpartition('@')[2]}: {error}".strip()) from error
        self._given: dict[str, Any] = given
        self.name = f"postgresql://{given.get('host', '')}/{given.get('dbname', '')}"

    def connect(self, **settings: str) -> Connection:
        """A new connection in autocommit mode; `settings` last as long as it does."""
        parameters = {**_PARAMETERS, **self._given}
        if not self.pooled:
            words = [f"-c {name}={value}" for name, value in {**_SETTINGS, **settings}.items()]
            parameters["options"] = " ".join([*words, self._given.get("options") or ""]).strip()
        try:
            db = psycopg.connect(
                **parameters, autocommit=True, prepare_threshold=None if self.pooled else 1
            )
        except psycopg.Error as error:
            advice = "Check that the server runs, and the host, user and password of ANDON_STORE."
            if "startup parameter" in str(error):
                advice = "There is a pooler in between: add ?andon_pooler=1 to the URL."
            raise StoreUnavailable(
                f"{self.name}: cannot connect: {str(error).strip()}. {advice}"
            ) from error
        try:
            self._refuse_unfit(db)
        except BaseException:
            db.close()
            raise
        # Always the same type: else each size of number would be prepared as another statement.
        db.adapters.register_dumper(int, Int8Dumper)
        return db

    def begin(self) -> bytes:
        """How the writer begins a transaction."""
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if self.pooled:  # else the connection itself has these
            for name, value in {"lock_timeout": f"{LOCK_SECONDS}s", **WRITER_SETTINGS}.items():
                begin += f"; SET LOCAL {name} = '{value}'"
        return begin.encode()

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
        """What an error of the driver means to andon."""
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
            text += ". Ask the database's owner for: GRANT CREATE ON DATABASE … TO your role"
        return StoreError(f"{self.name}: {type(error).__name__}: {text}")


def refuse_ended(db: Connection, mark: str) -> None:
    """The transaction is andon's to end: a caller that did so has split what belongs together."""
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
