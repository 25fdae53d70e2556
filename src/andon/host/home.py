"""The home folder: where the latch is, and which processes are alive on this host.

    STOP  latch  id  run/ID.json  run/ID.sock  state/ID.json  logs/  stacks/

Folders have mode 0700, files 0600. An existing home is used even if it is not writable: processes
that started earlier would not see a latch in another place.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from andon.host import proc

# The folder that `import andon` has to find, for the PYTHONPATH of our own processes.
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

FOLDERS = ("run", "state", "logs", "stacks")
LONGEST_ENTRY = 65_536
LONGEST_STATE = 1 << 24  # and receipt
# The path of a Unix socket may have at most 107 bytes.
LONGEST_SOCKET = 107


class HostEntry(NamedTuple):
    """A live supervisor, or a worker without one."""

    id: str
    kind: str = "supervisor"  # or worker
    pid: int = 0
    start_ticks: int = 0
    socket: str | None = None
    store: str | None = None  # without its password
    started_at: float = 0.0
    boot: str = ""
    namespace: str = ""  # the pid namespace: in another container a pid means another process


def find(environ: Mapping[str, str] = os.environ) -> str:
    """Return $ANDON_HOME, else ~/.andon, else /tmp/andon-UID if ~/.andon cannot be created."""
    given = environ.get("ANDON_HOME")
    if given:
        try:
            return os.path.abspath(given)
        except OSError:  # the current folder was deleted
            return given
    own = os.path.join(_user_folder(environ), ".andon")
    return own if os.path.isabs(own) and _can_be(own) else f"/tmp/andon-{os.geteuid()}"  # noqa: S108


def _user_folder(environ: Mapping[str, str]) -> str:
    if environ.get("HOME"):
        return environ["HOME"]
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a container's user without an account
        return ""


def _can_be(path: str) -> bool:
    if os.path.lexists(path):
        return True
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def foreign(home: str) -> str:
    """Return why this home must not be trusted, or an empty string."""
    found, me = os.stat(home), os.geteuid()
    if not stat.S_ISDIR(found.st_mode):
        return "it is not a folder"
    # In /tmp another user may have created it first.
    return "it belongs to another user" if me and found.st_uid not in {0, me} else ""


def make(home: str) -> None:
    """Create the missing folders. Raises OSError if that fails."""
    os.makedirs(home, 0o700, exist_ok=True)
    for folder in FOLDERS:
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(home, folder), 0o700)


def write(path: str, content: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically, with mode 0600."""
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            if os.write(descriptor, content) != len(content):
                raise OSError(errno.ENOSPC, "no space left", temporary)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def this_process(name: str, kind: str, **more: Any) -> HostEntry:
    """Return the entry of the calling process."""
    pid = os.getpid()
    more |= {"boot": proc.boot_id(), "namespace": proc.pid_namespace()}
    return HostEntry(name, kind, pid, proc.start_ticks(pid), **more)


def register(home: str, entry: HostEntry) -> str:
    """Write the entry to disk and return its path.

    Its owner unregisters it; `sweep` removes it if the owner died.
    """
    path = _entry_path(home, entry.id)
    write(path, json.dumps(entry._asdict()).encode())
    return path


def unregister(home: str, name: str) -> None:
    for path in (_entry_path(home, name), socket_path(home, name)):
        with contextlib.suppress(OSError):
            os.unlink(path)


def socket_path(home: str, name: str) -> str:
    return os.path.join(home, "run", f"{name}.sock")


@contextlib.contextmanager
def within_reach(path: str) -> Iterator[str]:
    """Yield a path to the socket that is short enough for the kernel to bind or connect to."""
    if len(os.fsencode(path)) <= LONGEST_SOCKET:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def entries(home: str) -> list[HostEntry]:
    """Return all registered entries, dead or alive, and skip the unreadable ones."""
    return _entries_in(os.path.join(home, "run"))


def left(home: str) -> list[HostEntry]:
    """Return supervisors that are no longer registered but have left a state file."""
    known = {entry.id for entry in entries(home)}
    return [entry for entry in _entries_in(os.path.join(home, "state")) if entry.id not in known]


def live(home: str) -> list[HostEntry]:
    """Return the entries whose process is alive, or cannot be checked from here."""
    return [entry for entry in entries(home) if not is_gone(entry)]


def sweep(home: str) -> list[HostEntry]:
    """Unregister the entries that are certainly gone, and return them."""
    gone = [entry for entry in entries(home) if is_gone(entry)]
    for entry in gone:
        unregister(home, entry.id)
    return gone


def is_here(entry: HostEntry) -> bool:
    """Whether the entry's pid means the same process in this boot and pid namespace."""
    boot, namespace = proc.boot_id(), proc.pid_namespace()
    return (entry.boot or boot, entry.namespace or namespace) == (boot, namespace)


def is_gone(entry: HostEntry) -> bool:
    """Whether the process is certainly gone.

    Pid and start time identify a process for ever, and a reboot ends all of them.
    """
    boot = proc.boot_id()
    if entry.boot and boot and entry.boot != boot:
        return True
    return is_here(entry) and not proc.alive(entry.pid, entry.start_ticks)


def state_path(home: str, name: str) -> str:
    """Return the path of a supervisor's list of what it owns, which its successor reads."""
    return os.path.join(home, "state", f"{name}.json")


def leave_receipt(home: str, name: str, receipt: dict[str, Any]) -> None:
    """Keep a receipt for clients that ask after the supervisor has ended; no halt depends on it."""
    with contextlib.suppress(OSError):
        write(_receipt_path(home, name), json.dumps(receipt).encode())


def take_receipt(home: str, name: str) -> dict[str, Any]:
    found = read_json(_receipt_path(home, name), LONGEST_STATE)
    with contextlib.suppress(OSError):
        os.unlink(_receipt_path(home, name))
    return found if isinstance(found, dict) else {}


def _receipt_path(home: str, name: str) -> str:
    return os.path.join(home, "state", f"{name}.receipt")


def _entry_path(home: str, name: str) -> str:
    return os.path.join(home, "run", f"{name}.json")


def _entries_in(folder: str) -> list[HostEntry]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    found = [_entry(os.path.join(folder, name)) for name in names]
    return [entry for entry in found if entry is not None]


def _entry(path: str) -> HostEntry | None:
    found = read_json(path)
    try:
        entry = HostEntry(
            **{name: found[name] for name in HostEntry._fields if name in (found or ())}
        )
    except TypeError:
        return None
    numbers = isinstance(entry.pid, int) and isinstance(entry.start_ticks, int)
    texts = all(isinstance(text, str) for text in (entry.id, entry.kind, entry.boot))
    if not (numbers and texts and entry.pid > 0 and isinstance(entry.socket, str | None)):
        return None
    return entry


def read_json(path: str, most: int = LONGEST_ENTRY) -> Any:
    """Parse a JSON file. Returns None if it cannot be read or is not JSON."""
    try:
        return json.loads(read(path, most))
    except (ValueError, RecursionError):
        return None


def read(path: str, most: int = LONGEST_ENTRY) -> str:
    """Return the first `most` bytes of a file as text; empty if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        content = b""
        while len(content) < most and (part := os.read(descriptor, most - len(content))):
            content += part
        return content.decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def without_password(url: str) -> str:
    """Return a store's URL without its password, so that it may be shown."""
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition(':')[0]}:…"
    if parts.scheme == "sqlite" or ("@" not in parts.netloc and "password" not in parts.query):
        return url
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    query = "&".join(
        pair for pair in parts.query.split("&") if not pair.lower().startswith("password=")
    )
    return urlunsplit(parts._replace(netloc=f"{name}@{host}" if user else host, query=query))
