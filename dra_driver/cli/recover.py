"""``dra-driver recover``: drains nodes with sick chips and has them mended; a controller, once a cluster."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import UsageError
from dra_driver.util.options import Option, PortsIfAsked

if TYPE_CHECKING:
    from dra_driver.operations.recovery.controller import RecoverySettings
    from dra_driver.operations.recovery.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Settings(PortsIfAsked, daemon.Program):
    """What an administrator sets for the controller."""

    namespace: Annotated[
        str, Option("--namespace", "namespace of the lease", "neuron-healthcheck-system", variable="POD_NAMESPACE")
    ]
    identity: Annotated[str, daemon.identity("RECOVERY_IDENTITY")]
    policy: Annotated[
        str,
        Option(
            "--policy",
            "file with the actions for each fault, see docs/operate/health.md",
            variable="RECOVERY_POLICY",
            made_of=".policy",
        ),
    ]
    hook: Annotated[
        str,
        Option(
            "--hook",
            "program that reloads drivers and reboots nodes: NODE PROVIDER_ID ACTION FAULT",
            variable="RECOVERY_HOOK",
            made_of=".hook.key",
        ),
    ]
    hook_timeout: Annotated[
        float,
        Option(
            "--hook-timeout",
            "seconds that the hook may take",
            "60",
            variable="RECOVERY_HOOK_TIMEOUT",
            bounds=(0.1, 90.0),
            made_of=".hook.timeoutSeconds",
        ),
    ]


TABLES = (Settings,)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Watch the condition NeuronHealth of the Nodes. For nodes with lasting faults: cordon, drain, and "
        "request a reload of the kernel driver, a reboot or a replacement, a few at a time, according to a policy. The "
        "changes are reverted when the fault is over. Without --act, it only writes Events on the Nodes about what it "
        "would do. With several replicas, one is active, and the others wait for its lease to expire.",
        examples=["recover --kubeconfig admin.conf --policy policy.yaml"],
    )
    daemon.add_options(parser, *TABLES)
    parser.add_argument("--act", action="store_true", help="carry out the actions (default: dry run)")
    parser.add_argument(
        "--cloudwatch",
        action="store_true",
        help="count each node that is acted on in CloudWatch (namespace NeuronHealthCheck; not in a dry run)",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.operations.recovery.controller import RecoveryService
    from dra_driver.util.metrics import Collector

    settings = daemon.begin(Settings, args)
    rules = recovery_settings(settings, act=args.act, cloudwatch=args.cloudwatch)
    service = RecoveryService(daemon.transport(settings.kubeconfig), settings.namespace, settings.identity, rules)
    checks = {"liveness": service.stuck, "readiness": service.problems}
    text = "Time of one action: a drain is one round of evictions."
    collector = Collector(service.numbers.operations, service.samples, "recovery_action_seconds", text)
    with daemon.stopped_by_signals() as stop, daemon.open_ports(settings, checks, collector):
        daemon.run_until(stop, service, service.stuck)
    return 0


def recovery_settings(settings: Settings, *, act: bool, cloudwatch: bool) -> RecoverySettings:
    """The settings; raises UsageError for an invalid policy, a program that is not there, or a missing package."""
    from dra_driver.operations.recovery.aws import check_installed
    from dra_driver.operations.recovery.controller import RecoverySettings
    from dra_driver.operations.recovery.hook import Hook

    policy = _policy(settings.policy)
    program = settings.hook
    if program and shutil.which(program) is None:
        raise UsageError(f"--hook is {program!r}, which is not an executable program", remedy="check path and mode")
    if cloudwatch or policy.replaces:
        check_installed()
    return RecoverySettings(policy, act, Hook(program, settings.hook_timeout) if program else None, cloudwatch)


def _policy(file: str) -> Policy:
    from dra_driver.operations.recovery.policy import MAX_POLICY_BYTES, Policy, decode_policy

    if not file:
        return Policy()
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_POLICY_BYTES + 1)
        # What is too long, and refused below, may end within a character.
        text = data.decode(errors="strict" if len(data) <= MAX_POLICY_BYTES else "replace")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the policy {file} cannot be read: {error}", remedy="check path and content") from error
    return decode_policy(text, file)
