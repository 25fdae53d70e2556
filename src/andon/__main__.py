"""`andon` and `python -m andon`."""

import sys


def main() -> None:
    """The entry point: nothing that a command does not need is imported for it."""
    if sys.argv[1:] in (["version"], ["--version"]):
        from andon.control.version import VERSION

        print(f"andon {VERSION}")
        return
    from andon.control.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
