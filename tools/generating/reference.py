"""The reference pages of the commands, from their parsers.

``docs/reference/commands.md`` has the commands that people run, ``docs/reference/settings.md`` the programs that a
cluster runs, whose options are environment variables too (``scripts/generate commands settings``).
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Final

from dra_driver.cli.kinds import FOREIGN, KEYS, KINDS, LISTS
from dra_driver.cli.main import COMMANDS, DAEMONS
from dra_driver.cli.vocabulary import Entry
from dra_driver.util.envelope import API_VERSION
from dra_driver.util.options import Option, Table, settings_of

WIDTH: Final = 118

WORKLOADS: Final = {
    "kubelet-plugin": "draDriver",
    "placer": "draDriver.placer",
    "recover": "npd.nodeRecovery",
    "node-problem-detector": "npd",
    "device-plugin": "devicePlugin",
    "extender": "scheduler",
}
"""Where the chart's values for each program are."""

TITLES: Final = {"commands": "Commands", "settings": "Settings"}

INTRODUCTIONS: Final = {
    "commands": "The commands of `dra-driver` that people run. `dra-driver COMMAND --help` prints the same. The exit "
    "status is 0 on success, 1 if the answer is no (the text gives the reason), and 2 if the input is invalid. The "
    "programs that a cluster runs are in [settings](settings.md).",
    "settings": "The programs that a cluster runs, and their settings. Each setting is an option of the command and an "
    "environment variable of its container; the option takes precedence. The chart and the installer set most of them "
    "([chart](../../charts/neuron-helm-chart/README.md), [install](../operate/install.md)).",
}


def page(kind: str) -> str:
    """A page: ``commands`` or ``settings``."""
    made = f"<!-- Made by `scripts/generate {kind}`; do not edit. -->"
    lines = [f"# {TITLES[kind]}", "", made, "", *_paragraph(INTRODUCTIONS[kind])]
    for name, text in {**COMMANDS, **DAEMONS}.items():
        module = import_module(f"dra_driver.cli.{name}")
        if hasattr(module, "TABLES") == (kind == "settings"):
            lines += _command(module, name.replace("_", "-"), text)
    if kind == "commands":
        lines += _kinds()
    return "\n".join(lines) + "\n"


def _command(module: ModuleType, command: str, text: str) -> Iterator[str]:
    root = argparse.ArgumentParser(prog="dra-driver")
    choices = root.add_subparsers()
    module.register(Entry(choices, command))
    yield from ("", f"## {command}", "", *_paragraph(f"{text[0].upper()}{text[1:]}."))
    parser = choices.choices[command]
    if hasattr(module, "TABLES"):
        yield ""
        yield from _settings(module.TABLES, WORKLOADS.get(command, ""))
        return
    yield from _parser(parser, command)


def _parser(parser: argparse.ArgumentParser, command: str) -> Iterator[str]:
    """Usage, description, options by group, examples; then the same of the commands within."""
    nested: list[tuple[str, argparse.ArgumentParser]] = []
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # noqa: SLF001 - no public way
    words = [_word(action) for action in actions if not action.option_strings]
    yield from ("", "```text", " ".join(["dra-driver", command, "[OPTION ...]", *words]).rstrip(), "```")
    if parser.description:
        yield from ("", *_paragraph(parser.description))
    rows = []
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - no public way
            nested += [(f"{command} {name}", inner) for name, inner in action.choices.items()]
        elif not isinstance(action, argparse._HelpAction):  # noqa: SLF001 - no public way
            rows += _bullet(_names(action), _help(action, parser))
    if rows:
        yield from ("", *rows)
    yield from _epilog(parser.epilog or "")
    for name, inner in nested:
        yield from ("", f"### {name}", *_parser(inner, name))


def _epilog(text: str) -> Iterator[str]:
    """Notes, examples and exit statuses, as ``Entry.command`` puts them together."""
    for part in text.split("\n\n"):
        heading, _, lines = part.partition("\n")
        if heading in ("example:", "examples:"):
            yield from ("", "```text", *textwrap.dedent(lines).splitlines(), "```")
        elif heading == "exit status:":
            meanings = (line.split(maxsplit=1) for line in lines.splitlines())
            yield from ("", "Exit status:", "", *(f"- {status}: {meaning}" for status, meaning in meanings))
        elif part:
            yield from ("", *_paragraph(part))


def _settings(tables: Sequence[type[Table]], workload: str) -> Iterator[str]:
    for setting in settings_of(*tables):
        option = setting.option
        notes = [f"one of {', '.join(f'`{word}`' for word in setting.choices)}"] if setting.choices else []
        notes += [f"default `{option.default}`"] if option.default else []
        notes += [f"chart: `{value}`"] if (value := _chart_value(option, workload)) else []
        text = f"{option.help} ({'; '.join(notes)})" if notes else option.help
        yield from _bullet(f"`{option.flag}`, `{option.variable}`", text)


def _chart_value(option: Option, workload: str) -> str:
    """The path of the chart's value for an option of a workload's program, or ""."""
    if option.chart:
        return f"{workload}.{option.chart}"
    return f"{workload}{option.made_of}" if option.made_of.startswith(".") else option.made_of


def _kinds() -> Iterator[str]:
    """What ``-o json`` and ``-o yaml`` print."""
    yield from ("", "## JSON and YAML", "")
    yield from _paragraph(
        f"With `-o json` or `-o yaml` a command prints one object: `apiVersion` (`{API_VERSION}`, no API group of "
        "Kubernetes or AWS), `kind`, `items`, and for some kinds further keys beside these. A key means the same "
        "wherever it stands, and as in the [status of claims](../use/in-containers.md#which-chip-did-i-get). What is "
        "not known or does not apply is null or left out."
    )
    yield from ("", "| Command | `kind` | Items | Keys of an item | Keys beside `items` |", "|---|---|---|---|---|")
    for name, kind in KINDS.items():
        yield f"| `{kind.command}` | `{name}` | {kind.item} | {_keys(kind.keys)} | {_keys(kind.beside)} |"
    yield ""
    yield from _paragraph(
        "Kubernetes' own objects are printed as kubectl prints and reads them, as a `List` of `v1`, which has the same "
        "three keys:"
    )
    yield ""
    for command, what in LISTS.items():
        yield from _bullet(f"`{command}`", what)
    yield ""
    yield from _paragraph(
        "Without `-o`, `template --for karpenter` prints the file that Karpenter's kwok provider reads: the `items` "
        "alone. `top -w -o json` prints one object per line."
    )
    yield from ("", "| Key | Content | Keys in it |", "|---|---|---|")
    of_items = {kind.keys for kind in KINDS.values()}
    for name, key in KEYS.items():
        yield f"| `{name}` | {key.meaning} | {'' if key.keys in of_items else _keys(key.keys)} |"


def _keys(keys: str) -> str:
    return "" if keys == FOREIGN else " ".join(f"`{key}`" for key in keys.split())


def _word(action: argparse.Action) -> str:
    if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - no public way
        return f"[{'|'.join(action.choices)}]"
    name = str(action.metavar or action.dest)
    return {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}.get(str(action.nargs), name)


def _names(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = ""
    if action.nargs != 0:
        value = f" {action.metavar or ('|'.join(map(str, action.choices)) if action.choices else action.dest.upper())}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def _paragraph(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH + 2, break_on_hyphens=False, break_long_words=False)


def _bullet(name: str, text: str) -> list[str]:
    line = f"- {name}: {' '.join(text.split())}" if text else f"- {name}"
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
