"""Who it is that says so."""


def named(given: str | None) -> str:
    """The name that was given, or the login; nothing if there is none."""
    if given is not None:
        return given
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
