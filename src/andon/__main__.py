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
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in ("halt", "kill", "pause", "cancel") and sys.path[0] in ("", _folder()):
        # `python -m` looks into the current folder first, and the files there are an agent's.
        del sys.path[0]
    if verb == "halt":
        from andon.supervisor.halt.command import main as halt

        sys.exit(halt(sys.argv[2:]))
    if verb in ("kill", "pause", "cancel"):
        from andon.cli.fast_path import main as give

        code = give(sys.argv[1:])
        if code is not None:
            sys.exit(code)
    if sys.argv[1:] in (["version"], ["--version"], ["-V"]):
        from andon.cli.version import VERSION

        print(f"andon {VERSION}")
        return
    from andon.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
