"""The name of the user who gives an order: the one place that finds it out."""

import os
import pwd


def named(given: str | None) -> str:
    """Return the given name, else the login name, else an empty string."""
    if given is not None:
        return given
    said = (os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME"))
    try:
        return next(filter(None, said), None) or pwd.getpwuid(os.getuid()).pw_name
    except (KeyError, OSError):
        return ""
