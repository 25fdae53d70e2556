"""The limits of a command under another user: see docs/security.md. Needs root."""

import json
import os
import pwd
import shutil
from pathlib import Path

import pytest
from tests.cli.hosts import Host

from andon.host.latch import Latch

# The interpreter of the tests may be where only their user may go.
PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or ""
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user"),
    pytest.mark.skipif(not PYTHON, reason="no Python that another user may execute"),
]

TRIES = """
import json, os, sqlite3, sys
home, store = sys.argv[1:]
found = {}


def attempt(name, call):
    try:
        call()
        found[name] = "done"
    except Exception as error:
        found[name] = type(error).__name__


attempt("signal", lambda: os.kill(os.getppid() or 1, 9))
attempt("clear", lambda: open(os.path.join(home, "latch"), "a").write("{}"))
attempt("list", lambda: os.listdir(home))
attempt("unlink", lambda: os.unlink(os.path.join(home, "STOP")))
attempt("read", lambda: open(store, "rb").read(16))
attempt("query", lambda: sqlite3.connect(store).execute("SELECT 1 FROM andon_runs"))
attempt("leave", lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write("0"))
found["address"] = [name for name in os.environ if name in ("ANDON_STORE", "ANDON_SUPERVISOR_FD")]
found["names"] = [os.environ.get(name) for name in ("HOME", "USER", "LOGNAME")]
found["uid"] = os.getuid()
print(json.dumps(found), flush=True)
"""


@pytest.fixture
def host(tmp_path: Path, sqlite_url: str) -> Host:
    # Users who may enter the test's folder may not read the files andon made in it.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    host = Host(tmp_path, sqlite_url)
    host("start", "nobody", code=4)
    return host


def test_a_command_under_another_user_can_neither_signal_read_nor_clear(host: Host) -> None:
    database = str(host.folder / "andon.db")
    words = ["--uid", "nobody", "--", PYTHON, "-c", TRIES, str(host.home), database]
    done = host.run("run", *words)
    found = json.loads(done.stdout)
    assert found.pop("uid") == pwd.getpwnam("nobody").pw_uid
    assert found.pop("address") == []
    assert found.pop("names") == [pwd.getpwnam("nobody").pw_dir, "nobody", "nobody"]
    assert set(found.values()) <= {"PermissionError", "OperationalError", "FileNotFoundError"}
    assert not Latch(str(host.home)).read().pulled


def test_a_command_under_the_same_user_is_not_contained(host: Host) -> None:
    """Documented in docs/security.md; this test keeps the statement honest."""
    import sys

    words = ["--", sys.executable, "-c", "import os; print(os.access(os.environ['H'], os.W_OK))"]
    done = host.run("run", *words, env={"H": str(host.home)})
    assert done.stdout.strip() == "True"
