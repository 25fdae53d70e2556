"""An asynchronous standby of a PostgreSQL server, which may take its place."""

from pathlib import Path

from andon.testing.postgres import USER, Cluster, _run_as


class Standby(Cluster):
    """Follows another cluster until it is promoted; then it answers at the other's port."""

    def __init__(self, primary: Cluster) -> None:
        super().__init__()
        self.primary = primary

    def _create(self) -> None:
        backup: list[str | Path] = [
            self._programs / "pg_basebackup",
            "-D",
            self._files,
            "-R",
            "-X",
            "stream",
        ]
        backup += ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", USER, "-c", "fast"]
        done = _run_as(self.account, [*backup, "--no-sync"], self.directory)
        if done.returncode:
            raise RuntimeError(f"pg_basebackup failed:\n{done.stdout}{done.stderr}")

    def _ready(self) -> bool:
        """A standby reports its own status instead of `ready`."""
        try:
            lines = (self._files / "postmaster.pid").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return False
        open_ = len(lines) >= 8 and lines[7].strip() in ("standby", "ready")
        return open_ and lines[0] == str(self.postmaster)

    def position(self) -> int:
        """How much of the log it has received, in bytes."""
        return self._number("SELECT pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')")

    def has_caught_up(self) -> bool:
        return self.position() >= position(self.primary)

    def take_over(self) -> None:
        """In the primary's place, with everything it had received until the primary was stopped."""
        self.port = self.primary.port
        self.start()
        self._number("SELECT pg_promote(true, 30)::int")

    def _number(self, sql: str) -> int:
        return number(self, sql)


def position(cluster: Cluster) -> int:
    return number(cluster, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")


def number(cluster: Cluster, sql: str) -> int:
    import psycopg

    with psycopg.connect(cluster.url(), autocommit=True) as db:
        [[found]] = db.execute(sql.encode()).fetchall()
    return int(found)
