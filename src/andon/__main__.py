"""`andon` and `python -m andon`."""

import os
import sys


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def main() -> None:
    """The entry point: nothing that a command does not need is imported for it."""
    if sys.argv[1:2] == ["halt"]:
        # `python -m` looks into the current folder first, and the files there are an agent's.
        if sys.path[0] in ("", _folder()):
            del sys.path[0]
        from andon.supervisor.panic import main as halt

        sys.exit(halt(sys.argv[2:]))
    if sys.argv[1:] in (["version"], ["--version"]):
        from andon.control.version import VERSION

        print(f"andon {VERSION}")
        return
    from andon.control.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
