"""``dra-driver completion``: the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from dra_driver.cli import vocabulary

SHELLS: Final = ("bash", "zsh", "fish")

NOTES = """\
to load it in every new shell:
  bash  dra-driver completion bash > ~/.local/share/bash-completion/completions/dra-driver
  zsh   dra-driver completion zsh > "${fpath[1]}/_dra-driver"
  fish  dra-driver completion fish > ~/.config/fish/completions/dra-driver.fish
"""


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Print the script that makes a shell complete the commands, options and files of dra-driver.",
        notes=NOTES,
        examples=["source <({} completion bash)"],
        done="printed",
        refused="shtab, which makes the scripts, is not installed",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from dra_driver.cli.main import complete_program

    parser = complete_program()
    _add_values(parser, {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _add_values(parser: argparse.ArgumentParser, places: Mapping[str, object]) -> None:
    """Tell shtab what the values of arguments are, by the words that the help has for them."""
    from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES

    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        words = (action.metavar if isinstance(action.metavar, str) else "").split("|")
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for child in action.choices.values():
                _add_values(child, places)
        elif words[0] in places:
            action.complete = places[words[0]]  # type: ignore[attr-defined] # shtab's own
        elif words[0].startswith("TYPE"):
            action.choices = list(INSTANCE_TYPES)
