"""``dra-driver verify-host``: whether this host is as the driver assumes, line by line, and a report to send in."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from dra_driver.cli import vocabulary
from dra_driver.cli.terminal import Progress, print_object, say
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dra_driver.operations.verification.evidence import Evidence

EXAMPLES = (
    "verify-host",
    "verify-host --report report.json --wait 65",
    "neuron-ls -j | {} verify-host --neuron-ls -",
    "verify-host --probe host --container-runtime containerd://2.1.5",
    "verify-host --from report.json",
)
MAX_WAIT = 600


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Check a numbered list of everything that the driver reads from a host. For each line, print what was "
        "seen, whether it is as expected, and what depends on it; then print which features can be relied on. Files "
        "are only read, and no device is opened unless --probe asks for it.\n\nThe report can be sent in: it contains "
        "no name, serial number or id of the instance (docs/reference/hardware.md).",
        examples=EXAMPLES,
        done="no line differs; lines that were not checked or do not apply (n/a) do not count",
        refused="a line differs, or the host cannot be read",
    )
    vocabulary.add_host_root(parser, here=True)
    parser.add_argument("--from", dest="from_report", metavar="REPORT", type=Path, help="check a report, not a host")
    parser.add_argument("--report", metavar="FILE", type=Path, help="also write the report (JSON)")
    parser.add_argument(
        "--neuron-ls", metavar="FILE", type=Path, help="output of `neuron-ls -j` on this host; - is standard input"
    )
    parser.add_argument(
        "--kernel-log", metavar="FILE", type=Path, help="output of `dmesg --raw` on this host; - is standard input"
    )
    parser.add_argument(
        "--container-runtime",
        metavar="V",
        default="",
        help="the Node's containerRuntimeVersion, such as containerd://2.1.5",
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=int,
        default=0,
        help="watch the heartbeats of the chips for S seconds (65 is enough)",
    )
    parser.add_argument(
        "--probe",
        choices=("host", "container"),
        help="also open chips, without using them: those of the host that no process has open (as root, on the host "
        "itself), or those of the container in which this runs, and try the others",
    )
    vocabulary.add_output(parser, "text", "json", "yaml")


def run(args: argparse.Namespace) -> int:
    """Print every line and the summary; status 1 if a line differs."""
    from dra_driver.operations.verification.assumptions import judge
    from dra_driver.operations.verification.report import document, written

    host = _evidence(args)
    if args.report is not None:
        _write(args.report, written(host))
    if args.output == "text":
        say("\n".join(text(host)))
        if args.report is not None:
            print(f"report: {args.report} (docs/reference/hardware.md says how to send it in)")
    else:
        print_object(document(host), args.output)
    return 1 if any(line.verdict.state == "differs" for line in judge(host)) else 0


def _evidence(args: argparse.Namespace) -> Evidence:
    import msgspec

    from dra_driver.operations.verification import collect
    from dra_driver.operations.verification.evidence import Evidence
    from dra_driver.operations.verification.report import read

    if args.from_report is not None:
        _refuse_more(args)
        return read(collect.read_input(args.from_report))
    if not 0 <= args.wait <= MAX_WAIT:
        raise UsageError(f"--wait {args.wait} is out of range", remedy=f"give 0 to {MAX_WAIT} seconds")
    host = collect.collect(args.host_root)
    added: dict[str, object] = {}
    if args.container_runtime:
        added["container_runtime"] = args.container_runtime
    if args.neuron_ls is not None:
        added["neuron_ls"] = collect.read_listing(args.neuron_ls)
    if args.kernel_log is not None:
        log = _kernel_log(args.kernel_log)
        added |= {"kernel_log": collect.lines_of(log), "unanswered": collect.unanswered(log)}
    if args.probe is not None:
        from dra_driver.operations.verification.probes import probe_container, probe_host

        if args.probe == "host":
            added["opened"] = probe_host(args.host_root, host)
        else:
            added["container"] = probe_container(host)
    host = msgspec.structs.replace(host, **added)
    if args.wait:
        with Progress("watching the heartbeats", "s") as progress:
            host = collect.beat_again(args.host_root, host, args.wait, progress)
    try:
        return msgspec.convert(msgspec.to_builtins(host, str_keys=True), Evidence, str_keys=True)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"this cannot stand in a report: {error}", remedy="see dra-driver verify-host --help"
        ) from error


def _kernel_log(path: Path) -> bytes:
    from dra_driver.operations.verification.collect import read_input

    log = read_input(path)
    if not log.strip():  # as dmesg without root gives it
        raise UsageError(
            "the kernel log is empty",
            consequence="it would look as if no chip had failed",
            remedy="save it as root: dmesg --raw >FILE",
        )
    return log


def _refuse_more(args: argparse.Namespace) -> None:
    """Raises UsageError for options that look at a host, beside --from."""
    for option in ("--neuron-ls", "--kernel-log", "--container-runtime", "--wait", "--probe"):
        if getattr(args, option[2:].replace("-", "_")):
            raise UsageError(
                f"{option} does not go with --from, which judges what a report says", remedy="remove one of the two"
            )


def text(host: Evidence) -> Iterator[str]:
    """The lines for people."""
    from dra_driver.operations.verification.assumptions import judge, trust
    from dra_driver.operations.verification.verdicts import State

    lines = judge(host)
    kind = host.inventory.instance_type or "unknown type"
    chips = f"{len(host.chips)} chip{'' if len(host.chips) == 1 else 's'}"
    yield f"{'Emulated host' if host.emulated else 'Host'}: {kind}, {chips}"
    yield ""
    for line in lines:
        row, verdict = line.assumption, line.verdict
        yield f"{line.number:3}  {verdict.state:<11}  {row.text}"
        said = {"seen": verdict.seen, "why": verdict.why, "source": row.source.text, "if it is wrong": row.consequence}
        yield from (f"{what:>17}: {told}" for what, told in said.items() if told)
    yield ""
    counts = Counter(line.verdict.state for line in lines)
    yield ", ".join(f"{counts[state]} {state}" for state in get_args(State))
    yield ""
    features = list(trust(lines))
    width = max(len(item.feature) for item in features)
    for item in features:
        because = f" (lines {', '.join(map(str, item.because))})" if item.because else ""
        yield f"{item.feature:<{width}}  {item.trust}{because}"


def _write(path: Path, content: str) -> None:
    """Write the report, through no link: it is root who does, and somebody else may have made the directory."""
    import errno

    from dra_driver.util.files import open_regular

    try:
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 # opened without following links
            file.write(content)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise DriverError(f"cannot write the report to {path}: {why}", remedy="name another file") from error
