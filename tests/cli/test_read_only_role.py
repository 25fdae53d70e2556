"""A role of PostgreSQL that may only read can look at a store."""

from collections.abc import Iterator

import psycopg
import pytest
from tests.cli.terminal import Terminal


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Terminal]:
    """A terminal of a role with SELECT and no other right, and runs that another role started."""
    owner = Terminal(tmp_path_factory.mktemp("owner"), postgres_url)
    with owner.worker():
        owner.start("greet", "--id", "done")
        owner.start("refunds", "orders=[2]", "--id", "asks")
        owner("wait", "done")
        owner("wait", "asks", "--for", "ask")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS only_reads")
        admin.execute("CREATE ROLE only_reads LOGIN")
        admin.execute("GRANT USAGE ON SCHEMA andon TO only_reads")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA andon TO only_reads")
        yield Terminal(
            tmp_path_factory.mktemp("reader"), postgres_url.replace("postgres@", "only_reads@")
        )
        admin.execute("DROP OWNED BY only_reads")
        admin.execute("DROP ROLE only_reads")


def test_a_read_only_role_sees_everything(reader: Terminal) -> None:
    rows = reader.json("ps")
    assert {row["id"]: row["state"] for row in rows} == {"asks": "suspended", "done": "succeeded"}
    assert "asks: Refund this much?" in reader("show", "asks")
    assert "greeting world" in reader("logs", "done")
    assert reader.json("verify")["runs"] == 2
    assert '"hello world"' in reader("wait", "done")
    for words in ("events", "receipts", "workers", "queues", "versions", "deploys", "limit"):
        reader(words)
    assert reader.json("doctor", code=1)["ok"] is False


@pytest.mark.parametrize(
    "words",
    [("start", "greet"), ("pause", "asks"), ("answer", "asks", "approve")],
    ids=lambda words: words[0],
)
def test_a_command_that_has_to_write_names_the_missing_grant(
    reader: Terminal, words: tuple[str, ...]
) -> None:
    said = reader.error(*words, code=1)
    assert "The role only_reads may not write" in said
    assert "it can look: andon ps, show, logs, events, receipts, verify" in said
