"""The edge to AWS: EC2 says what an instance is called, Auto Scaling replaces it, CloudWatch counts it.

Made with boto3, which is optional.

Credentials, endpoints and proxies are found as boto3 finds them: a role of the service account (IRSA, Pod Identity), of
the instance, or the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from dra_driver.operations.recovery.instances import Hostnames, Instance
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import one_line
from dra_driver.util.worker import bounded

NAMESPACE: Final = "NeuronHealthCheck"
"""Of the metrics; that of AWS's own recovery."""
SERVICES: Final = ("autoscaling", "cloudwatch", "ec2", "sts")
"""What is asked; sts by boto3, for the role of a service account. The image has the descriptions of these only."""
ACTIONS: Final = {
    "DescribeInstances": "ec2:DescribeInstances",
    "DescribeAutoScalingInstances": "autoscaling:DescribeAutoScalingInstances",
    "SetInstanceHealth": "autoscaling:SetInstanceHealth",
    "PutMetricData": "cloudwatch:PutMetricData",
}
"""Calls and the IAM actions that they need."""
CONNECT_SECONDS, READ_SECONDS = 2, 4
"""Short and without boto3's own retries: a leader must not hang in a call for longer than its lease. boto3 counts them
from the last sign of life, and not while names are resolved; so each call, and the fetching of credentials before it,
ends after the sum of both."""

_Result = TypeVar("_Result")


class AwsError(DriverError):
    """A call that AWS refused or did not answer."""

    def __init__(self, what: str, *, consequence: str = "it is retried later", remedy: str = "") -> None:
        super().__init__(what, consequence=consequence, remedy=remedy)


def check_installed() -> None:
    """UsageError that says how to get boto3, if it is not there."""
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"the package boto3 is not installed ({error})",
            consequence="no instance can be replaced and no CloudWatch metric be written",
            remedy="pip install 'neuron-dra-driver[recover]', use the image of this project, or remove the step "
            "replace and --cloudwatch",
        ) from error


class Aws:
    """Calls to AWS. Not thread-safe."""

    def __init__(self) -> None:
        self._clients = _Clients()

    def hostnames(self, instance: Instance) -> Hostnames:
        """What EC2 calls the instance. Raises AwsError."""
        try:
            answer = self._call("ec2", instance.region, "DescribeInstances", InstanceIds=[instance.id])
        except AwsError as error:
            text = "without its answer no instance is replaced or given to the hook; it is asked again later"
            raise AwsError(error.what, consequence=text, remedy=error.remedy) from error
        item: dict[str, Any] = next(
            (item for group in answer.get("Reservations", ()) for item in group.get("Instances", ())), {}
        )
        addresses = {str(item.get("PrivateIpAddress", ""))}
        for interface in item.get("NetworkInterfaces", ()):
            addresses |= {str(entry.get("PrivateIpAddress", "")) for entry in interface.get("PrivateIpAddresses", ())}
        return Hostnames(instance.id, str(item.get("PrivateDnsName", "")), frozenset(addresses - {""}))

    def replace(self, instance: Instance, *, respect_grace_period: bool) -> str:
        """Have the instance's Auto Scaling group replace it; does nothing if that is so already.

        Returns:
            What was done, for people.

        Raises:
            AwsError: no answer, no right, or no Auto Scaling group.
        """
        answer = self._call("autoscaling", instance.region, "DescribeAutoScalingInstances", InstanceIds=[instance.id])
        found = answer.get("AutoScalingInstances") or ()
        if not found:
            raise AwsError(
                f"instance {instance.id} is in no Auto Scaling group of {instance.region}",
                remedy="remove the step replace from the policy, and let a hook replace such instances",
            )
        group, state = str(found[0].get("AutoScalingGroupName", "")), str(found[0].get("LifecycleState", ""))
        if found[0].get("HealthStatus", "").upper() == "UNHEALTHY" or state.startswith("Terminat"):
            return f"Auto Scaling group {group} is already replacing {instance.id}"
        self._call(
            "autoscaling",
            instance.region,
            "SetInstanceHealth",
            InstanceId=instance.id,
            HealthStatus="Unhealthy",
            ShouldRespectGracePeriod=respect_grace_period,
        )
        return f"Auto Scaling group {group} was told to replace {instance.id}"

    def count(self, instance: Instance, reason: str) -> None:
        """Add 1 to the CloudWatch metric of that name for the instance. Raises AwsError."""
        row = {"MetricName": reason, "Value": 1.0, "Unit": "Count", "Timestamp": time.time()}
        row["Dimensions"] = [{"Name": "InstanceId", "Value": instance.id}]
        self._call("cloudwatch", instance.region, "PutMetricData", Namespace=NAMESPACE, MetricData=[row])

    def _call(self, service: str, region: str, operation: str, **arguments: Any) -> dict[str, Any]:
        check_installed()
        from botocore import xform_name
        from botocore.exceptions import BotoCoreError, ClientError

        clients = self._clients
        try:
            # Two steps: what hung for its credentials is not to replace an instance minutes later.
            client = self._in_time(lambda: clients.client(service, region), "no credentials in time")
            answer: dict[str, Any] = self._in_time(
                lambda: getattr(client, xform_name(operation))(**arguments), "no answer in time"
            )
        except ClientError as error:
            raise _refusal(operation, error.response) from error
        except (BotoCoreError, OSError) as error:
            raise AwsError(
                f"AWS did not answer {operation}: {one_line(str(error), 300)}",
                remedy="check the credentials of the service account and the network path to AWS",
            ) from error
        return answer

    def _in_time(self, work: Callable[[], _Result], otherwise: str) -> _Result:
        def overdue() -> TimeoutError:
            # The thread that is left behind goes on with the old ones, and may hold their locks.
            self._clients = _Clients()
            return TimeoutError(otherwise)

        return bounded(work, CONNECT_SECONDS + READ_SECONDS, overdue)


class _Clients:
    """boto3's clients and their session. Not thread-safe."""

    def __init__(self) -> None:
        self._session: Any = None
        self._by_service: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str) -> Any:
        """The client of a service, with credentials that are there. Raises AwsError, and what boto3 raises."""
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        if self._session is None:
            core = botocore.session.Session()
            # Of the session, since boto3 has clients of its own, too: that of STS fetches credentials.
            core.set_default_client_config(
                Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries={"total_max_attempts": 1})
            )
            self._session = boto3.session.Session(botocore_session=core)
        if (credentials := self._session.get_credentials()) is not None:
            credentials.get_frozen_credentials()
        key = service, region
        if key not in self._by_service:
            try:
                self._by_service[key] = self._session.client(service, region_name=region)
            except (BotoCoreError, ValueError) as error:
                raise AwsError(f"AWS's {service} in {region} cannot be reached: {one_line(str(error), 300)}") from error
        return self._by_service[key]


def _refusal(operation: str, response: dict[str, Any]) -> AwsError:
    told = response.get("Error") or {}
    code, message = str(told.get("Code", "")), one_line(str(told.get("Message", "")), 300)
    denied = code in ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
    remedy = f"grant {ACTIONS[operation]} to the service account's role" if denied else ""
    return AwsError(f"AWS refused {operation}: {code}: {message}", remedy=remedy)
