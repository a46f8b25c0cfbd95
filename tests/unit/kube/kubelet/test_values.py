from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.kubelet.dra import ClaimRef, Failure, KeyedLock, base_requests, distinct, is_driver_name
from dra_driver.kube.kubelet.grpcserver import (
    Activity,
    fitting,
    hidden_pattern,
    registrar_names,
    service_names,
)
from dra_driver.kube.kubelet.registration import Registration, RegistrationState, explanation
from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.util.errors import DriverError
from dra_driver.util.logs import operation, operation_id
from tests.golden import golden

UID = "11111111-2222-3333-4444-555555555555"
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
PLUGINS = Path("/var/lib/kubelet/plugins")

driver_names = st.from_regex(r"[a-z]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)
pod_uids = st.none() | st.uuids().map(str)


# -- socket names


def test_socket_names_have_the_forms_that_kubernetes_documents() -> None:
    assert service_names(None) == ["dra.sock"]
    assert service_names(UID)[0] == f"dra-{UID}.sock"
    assert registrar_names("gpu.example.com", None)[0] == "gpu.example.com-reg.sock"
    preferred, shorter, shortest = registrar_names("gpu.example.com", UID)
    assert preferred == f"gpu.example.com-{UID}-reg.sock"
    # base64url of the first 8 bytes of sha256(uid), and of the first 16 of sha256(driver NUL uid)
    assert shorter == "gpu.example.com-Zm_2zKpbPAc-reg.sock"
    assert shortest == "dra-KMx14UzMfiSWcmF1Jb_YNA-reg.sock"


@given(driver_names, pod_uids)
def test_below_kubelets_default_directory_every_driver_and_pod_has_a_name_that_fits(
    driver: str, uid: str | None
) -> None:
    for path in (
        fitting(PLUGINS / driver, service_names(uid)),
        fitting(REGISTRY, registrar_names(driver, uid)),
    ):
        assert len(bytes(path)) <= 107
        assert not path.name.startswith(".")


@given(st.integers(1, 140), driver_names, pod_uids)
def test_a_name_fits_or_is_refused_whatever_the_directory(length: int, driver: str, uid: str | None) -> None:
    directory = Path("/" + "d" * (length - 1))
    candidates = registrar_names(driver, uid)
    try:
        path = fitting(directory, candidates)
    except DriverError as error:
        assert "107" in str(error)
        assert all(len(str(directory / name)) > 107 for name in candidates)
    else:
        assert len(str(path)) <= 107


def test_two_pods_and_two_drivers_never_share_a_short_name() -> None:
    other = UID.replace("1", "2")
    names = [registrar_names(driver, uid)[-1] for driver in ("a", "b") for uid in (UID, other, None)]
    assert len(set(names)) == 6


def test_hidden_names_tell_their_owner() -> None:
    assert hidden_pattern().fullmatch(".0a1b2c")
    assert not hidden_pattern().fullmatch("dra.sock")
    assert hidden_pattern("one").pattern != hidden_pattern("two").pattern
    assert not hidden_pattern("one").fullmatch(".0a1b2c")


# -- claims


@pytest.mark.parametrize("uid", [UID, "a", "0", "A_b.c-d", "x" * 64])
def test_uids_that_are_safe_file_names_are_accepted(uid: str) -> None:
    assert ClaimRef("default", "my.claim-1", uid).problem() is None


@given(st.text(max_size=80))
def test_an_accepted_uid_is_always_one_plain_path_component(uid: str) -> None:
    if ClaimRef("ns", "name", uid).problem() is None:
        assert Path(uid).name == uid
        assert not uid.startswith(".")
        assert len(uid.encode()) <= 64
        assert (uid + ".json").isprintable()


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_a_problem_is_one_short_printable_line(namespace: str, name: str, uid: str) -> None:
    problem = ClaimRef(namespace, name, uid).problem()
    if problem is not None:
        assert problem.isascii()
        assert problem.isprintable()
        assert len(problem) < 1024


@pytest.mark.parametrize(
    ("namespace", "name", "fault"),
    [
        ("Ns", "c", "namespace"),
        ("ns.x", "c", "namespace"),
        ("ns", "-c", "name"),
        ("ns", "a..b", "name"),
        ("ns", "c\n", "name"),
    ],
)
def test_names_follow_kubernetes_rules(namespace: str, name: str, fault: str) -> None:
    assert (ClaimRef(namespace, name, UID).problem() or "").startswith(fault)


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("gpu.example.com", True),
        ("a", True),
        ("a" * 63, True),
        ("a" * 64, False),
        ("", False),
        ("A", False),
        ("a/b", False),
    ],
)
def test_driver_names(name: str, fine: bool) -> None:
    assert is_driver_name(name) is fine


def test_distinct_keeps_order_and_refuses_contradictions() -> None:
    a, b, other_a = ClaimRef("ns", "a", "1"), ClaimRef("ns", "b", "2"), ClaimRef("ns", "z", "1")
    assert distinct([b, a, b]) == {"2": b, "1": a}
    found = distinct([a, other_a, a])
    assert isinstance(found["1"], Failure)
    assert list(found) == ["1"]
    malformed = distinct([ClaimRef("ns", "a", ".."), ClaimRef("ns", "b", "..")])
    assert isinstance(malformed[".."], Failure)


@given(st.lists(st.text()))
def test_every_claim_asked_for_gets_an_outcome(uids: list[str]) -> None:
    assert set(distinct(ClaimRef("ns", "c", uid) for uid in uids)) == set(uids)


def test_base_requests_drop_the_subrequest_and_repetitions() -> None:
    assert base_requests(["b/x", "a", "b/y", "b", "a/x"]) == ["b", "a"]
    assert base_requests([]) == []


# -- registration


def test_registration_says_what_is_wrong() -> None:
    waiting = Registration(RegistrationState.WAITING, "", 0.0)
    refused = Registration(RegistrationState.REFUSED, "unknown version", 0.0)
    golden(str(waiting.problem()))
    golden(str(refused.problem()))
    assert Registration(RegistrationState.REGISTERED, "", 0.0).problem() is None


@pytest.mark.parametrize(
    "text",
    [
        "versions [v2.DRAPlugin] NOT SUPPORTED",
        "endpoint /x already registered for plugin",
        "no handler registered for plugin type: DRAPlugin",
        "context deadline exceeded",
        "error while dialing unix /x",
        "something new",
    ],
)
def test_refusals_get_their_likely_reason(text: str) -> None:
    golden(explanation(text))


# -- locks, activity, operations, workers


def test_locks_of_different_keys_are_independent_and_vanish_after_use() -> None:
    locks = KeyedLock()
    with locks.hold("a", 1) as a, locks.hold("b", 1) as b:
        assert a
        assert b
        with locks.hold("a", 0) as again:
            assert not again
        with locks.hold("a", -5) as again:
            assert not again
        assert len(locks) == 2
    assert len(locks) == 0


def test_a_lock_is_released_when_its_body_fails() -> None:
    locks = KeyedLock()
    with pytest.raises(ValueError, match="x"), locks.hold("a", 1):
        raise ValueError("x")
    with locks.hold("a", 0) as got:
        assert got


def test_one_key_is_held_by_one_thread_at_a_time() -> None:
    locks, inside, most = KeyedLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with locks.hold("key", 10) as got:
                assert got
                inside += 1
                most = max(most, inside)
                time.sleep(0.0001)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(locks) == 0


def test_a_closed_server_allows_no_call_and_waits_for_those_that_run() -> None:
    activity = Activity()
    with activity.call() as allowed:
        assert allowed
        assert not activity.close(0.01)
    assert activity.close(0)
    with activity.call() as allowed:
        assert not allowed


def test_an_operation_within_another_keeps_its_id() -> None:
    with operation() as outer:
        assert len(outer) == 8
        assert operation_id() == outer
        with operation() as inner:
            assert inner == outer
        assert operation_id() == outer
    assert operation_id() == ""
    with operation() as another:
        assert another != outer


# -- versions


@pytest.mark.parametrize("suffix", ["", "-eks-113cf36", "+k3s1", "-gke.1037000", "-rc.0", "-eks-1+a-b"])
@pytest.mark.parametrize(
    ("release", "broken"),
    [
        ("v1.33.13", False),
        ("v1.34.0", True),
        ("v1.34.1", True),
        ("v1.34.2", False),
        ("v1.34.10", False),
        ("v1.35.0", False),
        ("v1.134.1", False),
    ],
)
def test_kubelets_that_stop_calling_are_known_by_their_release_whatever_the_vendor_adds(
    release: str, suffix: str, broken: bool
) -> None:
    problem = kubelet_problem(release + suffix)
    assert bool(problem) == broken
    assert problem.startswith(f"kubelet {release} " if broken else "")


def test_an_unknown_version_is_no_reason_to_offer_nothing() -> None:
    assert kubelet_problem("") == kubelet_problem("1.34.1") == kubelet_problem("v1.34") == ""
