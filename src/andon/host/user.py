"""Who it is that says so."""

import os
import pwd


def named(given: str | None) -> str:
    """The name that was given, or the login; nothing if there is none."""
    if given is not None:
        return given
    said = (os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    try:
        return next(filter(None, said), None) or pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):
        return ""
