"""Replacement through AWS's API: moto's server on loopback, with an Auto Scaling group, asked by the real boto3."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from dra_driver.operations.recovery import aws as module
from dra_driver.operations.recovery.aws import Aws, AwsError
from dra_driver.operations.recovery.controller import NAME
from dra_driver.operations.recovery.instances import Instance
from dra_driver.operations.recovery.nodes import MARK
from dra_driver.util.errors import DriverError
from tests.builders.recovery import add_budget, add_node, add_pod, sicken
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually
from tests.golden import golden, golden_error

pytestmark = pytest.mark.slow

REGION = "us-east-1"
SYSTEM = "neuron-healthcheck-system"


@pytest.fixture(scope="module")
def aws_url() -> Iterator[str]:
    """Address of the stand-in for AWS."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    for service, ask in (
        ("autoscaling", "describe_auto_scaling_groups"),
        ("cloudwatch", "list_metrics"),
        ("ec2", "describe_vpcs"),
        ("sts", "get_caller_identity"),
    ):
        # It imports each service at the first call, which takes it longer than a call of ours may take.
        client = boto3.client(service, REGION, endpoint_url=url, aws_access_key_id="test", aws_secret_access_key="test")
        getattr(client, ask)()
    yield url
    server.stop()


@pytest.fixture(autouse=True)
def _environment(aws_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(aws_url).items():
        monkeypatch.setenv(name, value)


def environment(url: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    return keys | {"AWS_ENDPOINT_URL": url, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


@pytest.fixture
def instances() -> list[str]:
    """Three instances of an Auto Scaling group."""
    ec2, autoscaling = boto3.client("ec2", region_name=REGION), boto3.client("autoscaling", region_name=REGION)
    name = f"neuron-{time.monotonic_ns()}"
    # Made instead of found: moto takes 0.7 s of processor time to list those that it comes with.
    image = ec2.register_image(Name=name)["ImageId"]
    autoscaling.create_launch_configuration(LaunchConfigurationName=name, ImageId=image, InstanceType="trn1.32xlarge")
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchConfigurationName=name,
        MinSize=0,
        MaxSize=9,
        DesiredCapacity=3,
        AvailabilityZones=["us-east-1a"],
    )
    (group,) = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return sorted(item["InstanceId"] for item in group["Instances"])


def health(instances: list[str]) -> list[str]:
    client = boto3.client("autoscaling", region_name=REGION)
    found = client.describe_auto_scaling_instances(InstanceIds=instances)["AutoScalingInstances"]
    by_id = {item["InstanceId"]: item["HealthStatus"].lower() for item in found}
    return [by_id[instance] for instance in instances]


def metrics(instance: str) -> list[str]:
    client = boto3.client("cloudwatch", region_name=REGION)
    found = client.list_metrics(Namespace="NeuronHealthCheck")["Metrics"]
    return [item["MetricName"] for item in found if {"Name": "InstanceId", "Value": instance} in item["Dimensions"]]


def test_an_answer_that_comes_byte_by_byte_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 1)
    over = threading.Event()

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted, contextlib.suppress(OSError):
            accepted.recv(65536)
            accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not over.wait(0.05):
                accepted.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(serve)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            with pytest.raises(AwsError, match="no answer in time"):
                Aws().replace(Instance(REGION, "i-1"), respect_grace_period=False)
        finally:
            over.set()


def test_auto_scaling_is_told_about_one_instance_and_only_once(instances: list[str]) -> None:
    aws = Aws()
    told = aws.replace(Instance(REGION, instances[1]), respect_grace_period=False)
    golden(re.sub(r"neuron-\d+", "GROUP", told.replace(instances[1], "INSTANCE")))
    assert health(instances) == ["healthy", "unhealthy", "healthy"]
    assert "already" in aws.replace(Instance(REGION, instances[1]), respect_grace_period=False)


def test_an_instance_of_no_group_is_an_error_that_says_so() -> None:
    with golden_error(AwsError):
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)


def test_aws_that_gives_no_answer_is_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with golden_error(AwsError):
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)


def test_no_credentials_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with golden_error(AwsError):
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials by the role of a service account (IRSA), which STS gives for its token."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("x" * 64)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/recovery")
    monkeypatch.setattr(module, "READ_SECONDS", 1.0)


@contextlib.contextmanager
def hanging(pause: float) -> Iterator[str]:
    """The address of a service that takes connections and begins an answer that never ends, a byte a pause."""
    ending = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
                while not ending.wait(pause):
                    connection.sendall(b"x")

        threading.Thread(target=answer, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ending.set()


@pytest.mark.usefixtures("role")
def test_credentials_that_do_not_come_are_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a network policy or a security group lets nothing through to STS."""
    with hanging(3600) as url, pytest.raises(AwsError) as caught:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)
    golden(str(caught.value).replace(url, "URL"))


@pytest.mark.usefixtures("role")
def test_after_credentials_that_were_given_up_the_next_call_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = Aws()
    with hanging(0.1) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        with golden_error(AwsError):
            aws.hostnames(Instance(REGION, "i-0123456789abcdef0"))
        monkeypatch.delenv("AWS_ENDPOINT_URL_STS")
        with pytest.raises(AwsError, match="InvalidInstanceID"):
            aws.hostnames(Instance(REGION, "i-0123456789abcdef0"))


def test_an_answer_that_does_not_end_is_an_error_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 1.0)
    with hanging(0.1) as url, golden_error(AwsError):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)


EC2_DENIES = "UnauthorizedOperation"


class Refusing:
    """An AWS that answers every call with one error."""

    def __init__(self, code: str) -> None:
        from http.server import BaseHTTPRequestHandler, HTTPServer

        error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
        # As EC2 says it, and the other services.
        body = (
            f"<Response><Errors>{error}</Errors></Response>"
            if code == EC2_DENIES
            else f"<ErrorResponse>{error}</ErrorResponse>"
        ).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(400)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the base class's name
                """Log nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.mark.parametrize("code", ["AccessDenied", "Throttling"])
def test_a_refusal_says_what_to_do(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(code)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refusing.server.server_port}")
    with refusing.server, pytest.raises(AwsError) as caught:
        Aws().replace(Instance(REGION, "i-0123456789abcdef0"), respect_grace_period=False)
    refusing.server.shutdown()
    golden(str(caught.value))


def test_a_node_is_counted_in_cloudwatch(instances: list[str]) -> None:
    Aws().count(Instance(REGION, instances[0]), "NeuronHasError_DMA_ERROR")
    assert metrics(instances[0]) == ["NeuronHasError_DMA_ERROR"]


def test_without_boto3_the_text_says_how_to_get_it(tmp_path: Path, server: ApiServer) -> None:
    """As in an environment that was installed without the extra."""
    (tmp_path / "policy.yaml").write_text("remedies: {replacement: [cordon, drain, replace]}\n")
    (tmp_path / "boto3.py").write_text("raise ImportError(\"No module named 'boto3'\")\n")
    done = subprocess.run(
        [*command(server, tmp_path), f"--policy={tmp_path}/policy.yaml"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    golden(done.stderr)
    assert done.stderr.count("\n") == 1


# The program


def command(server: ApiServer, directory: Path) -> list[str]:
    config = server.kubeconfig(directory / "kubeconfig")
    return [sys.executable, "-m", "dra_driver", "recover", f"--kubeconfig={config}", f"--namespace={SYSTEM}"]


@contextlib.contextmanager
def program(server: ApiServer, directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``dra-driver recover`` as a process."""
    with (directory / "log").open("ab") as output:
        process = subprocess.Popen([*command(server, directory), *options], stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def cluster(server: ApiServer, instances: list[str]) -> None:
    """Three nodes on the three instances; the middle one has broken memory and a pod."""
    for number, instance in enumerate(instances):
        node = add_node(server, f"n{number}")
        node["spec"]["providerID"] = f"aws:///us-east-1a/{instance}"
        server.store.update("nodes", f"n{number}", node)
    add_pod(server, "training", "n1")
    add_budget(server, "training", 0)
    sicken(server, "n1", "hbm-uncorrectable")


def mark(server: ApiServer, name: str) -> Object:
    notes = server.store.get("nodes", name)["metadata"].get("annotations") or {}
    found: Object = json.loads(notes.get(MARK, "{}"))
    return found


def events(server: ApiServer) -> list[str]:
    return [item["reason"] for item in server.store.list("events")[0]]


POLICY = """\
persistSeconds: 0
pauseSeconds: 0
remedies:
  replacement: [cordon, drain, request, replace]
"""


def test_killed_and_started_again_the_program_goes_on_and_replaces_the_right_instance(
    server: ApiServer, instances: list[str], tmp_path: Path
) -> None:
    """Killed in the middle of a drain; the successor waits for the lease, which a test need not."""
    cluster(server, instances)
    (tmp_path / "policy.yaml").write_text(POLICY)
    options = (f"--policy={tmp_path}/policy.yaml", "--act", "--cloudwatch")
    with program(server, tmp_path, *options) as first:
        eventually(lambda: "NeuronRecoveryDrains" in events(server), within=30)
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert mark(server, "n1")["did"] == ["cordon"]
    assert health(instances) == ["healthy"] * 3
    server.store.delete("leases", f"{SYSTEM}/{NAME}")
    server.store.delete("poddisruptionbudgets", "work/training")
    server.fail(503, 3, method="PATCH", path="/nodes/")
    with program(server, tmp_path, *options):
        eventually(lambda: "replaced" in mark(server, "n1"), within=30)
    assert health(instances) == ["healthy", "unhealthy", "healthy"]
    assert metrics(instances[1]) == ["NeuronHasError_HBM_UNCORRECTABLE_ERROR"]
    assert mark(server, "n0") == mark(server, "n2") == {}
    assert events(server).count("NeuronRecoveryBegan") == 1


def private_dns_name(instance: str) -> str:
    (reservation,) = boto3.client("ec2", region_name=REGION).describe_instances(InstanceIds=[instance])["Reservations"]
    return str(reservation["Instances"][0]["PrivateDnsName"])


def hook(directory: Path) -> Path:
    """A program that writes down for which nodes it is called."""
    file = directory / "hook"
    file.write_text(f'#!/bin/sh\necho "$1" >>{directory}/calls\n')
    file.chmod(0o755)
    return file


def waits(server: ApiServer) -> list[str]:
    return [item["message"] for item in server.store.list("events")[0] if item["reason"] == "NeuronRecoveryWaits"]


@pytest.mark.parametrize("liar", ["ip-10-99-99-99.ec2.internal", "trainer-1"])
def test_an_instance_that_is_not_the_nodes_own_is_neither_replaced_nor_given_to_the_hook(
    server: ApiServer, instances: list[str], tmp_path: Path, liar: str
) -> None:
    """Its own node names no instance, or was deleted; EC2 knows what it is called."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    owner = private_dns_name(instances[1])
    add_node(server, liar)
    if liar == "trainer-1":
        add_node(server, owner)
        server.store.update("nodes", owner, {**server.store.get("nodes", owner), "spec": {}})
    node = server.store.get("nodes", liar)
    server.store.update("nodes", liar, {**node, "spec": {"providerID": f"aws:///us-east-1a/{instances[1]}"}})
    sicken(server, liar, "hbm-uncorrectable")
    options = [f"--policy={tmp_path}/policy.yaml", "--act", f"--hook={hook(tmp_path)}"]
    if liar == "trainer-1":
        options.append("--cloudwatch")
    with program(server, tmp_path, *options):
        eventually(lambda: waits(server), within=30)
        golden(waits(server)[0].replace(instances[1], "INSTANCE").replace(owner, "ip-10-0-0-5.ec2.internal"))
        server.store.delete("nodes", liar)
        if liar == "trainer-1":
            server.store.delete("nodes", owner)
        assert health(instances) == ["healthy"] * 3
        assert not (tmp_path / "calls").exists()
        assert metrics(instances[1]) == []
        # The same instance, by the node that it is.
        add_node(server, owner)
        node = server.store.get("nodes", owner)
        server.store.update("nodes", owner, {**node, "spec": {"providerID": f"aws:///us-east-1a/{instances[1]}"}})
        sicken(server, owner, "hbm-uncorrectable")
        eventually(lambda: "replaced" in mark(server, owner), within=30)
    assert health(instances) == ["healthy", "unhealthy", "healthy"]
    assert (tmp_path / "calls").read_text() == f"{owner}\n"


def test_without_the_right_to_ask_ec2_nothing_is_replaced_and_the_right_is_named(
    server: ApiServer, instances: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade from a version that did not ask."""
    cluster(server, instances)
    server.store.delete("poddisruptionbudgets", "work/training")
    (tmp_path / "policy.yaml").write_text(POLICY)
    refusing = Refusing(EC2_DENIES)
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{refusing.server.server_port}")
    with refusing.server, program(server, tmp_path, f"--policy={tmp_path}/policy.yaml", "--act"):
        eventually(lambda: "NeuronRecoveryFailed" in events(server), within=30)
        refusing.server.shutdown()
    (message,) = {
        item["message"]
        for item in server.store.list("events")[0]
        if item["reason"] == "NeuronRecoveryFailed" and "Unauthorized" in item["message"]
    }
    golden(message)
    assert mark(server, "n1")["action"] == "replacement"
    assert health(instances) == ["healthy"] * 3


def test_a_dry_run_of_the_program_asks_aws_for_nothing(
    server: ApiServer, instances: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    cluster(server, instances)
    (tmp_path / "policy.yaml").write_text(POLICY)
    with program(server, tmp_path, f"--policy={tmp_path}/policy.yaml", "--cloudwatch") as running:
        eventually(lambda: "NeuronRecoveryDryRun" in events(server), within=30)
        running.terminate()
        assert running.wait(30) == 0
    assert server.count("PATCH") == server.count("POST", "/eviction") == 0
    (message,) = [
        item["message"] for item in server.store.list("events")[0] if item["reason"] == "NeuronRecoveryDryRun"
    ]
    golden(message)
    assert "aws" not in (tmp_path / "log").read_text().lower()


def test_a_provider_id_of_another_cloud_is_said(server: ApiServer) -> None:
    from dra_driver.operations.recovery.instances import instance_of

    with golden_error(DriverError):
        instance_of("gce://project/zone/name")
