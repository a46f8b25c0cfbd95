"""``dra-driver help``: the help of the program, or of one command."""

from __future__ import annotations

import argparse

from dra_driver.cli import vocabulary


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Show the help of a command; without one, the list of commands. The same as COMMAND --help. `help "
        "daemons` lists what the pods of an installation run.",
        examples=["help topology", "help daemons"],
        done="printed",
        refused="not used",
    )
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, and its action if it has some")


def run(args: argparse.Namespace) -> int:
    """Let the program print the help."""
    from dra_driver.cli.main import daemons

    if args.words == ["daemons"]:
        print(daemons())
        return 0
    try:
        status: int = args.main([*args.words, "--help"])
    except SystemExit as ended:  # how argparse ends after --help, and after a command that it does not know
        status = int(ended.code or 0)
    return status
