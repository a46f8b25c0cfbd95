"""What scripts/benchmark publication counts."""

from __future__ import annotations

from bench.publication import Moment, counted, established, report

METRICS = """\
apiserver_request_total{code="201",dry_run="",resource="resourceslices",subresource="",verb="POST"} 500
apiserver_request_total{code="409",dry_run="",resource="resourceslices",subresource="",verb="POST"} 2
apiserver_request_total{code="200",dry_run="",resource="resourceslices",subresource="",verb="LIST"} 1.5e+03
apiserver_request_total{code="200",dry_run="",resource="nodes",subresource="",verb="LIST"} 7
"""
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100C50A:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:9C40 0100C50A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100C50A:01BB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0100007F:9C41 0100C50A:01BB 06 00000000:00000000 00:00000000 00000000     0        0 4 1
"""


def test_requests_for_slices_are_counted_by_verb_whatever_their_status() -> None:
    assert counted(METRICS) == {"POST": 502, "LIST": 1500}


def test_a_connection_is_counted_once_and_only_while_it_is_open() -> None:
    assert established(TCP, 443) == 1


def test_what_happened_since_a_moment_is_its_difference() -> None:
    before, after = Moment({"POST": 5}, 2.0, 10), Moment({"POST": 9, "LIST": 4, "PUT": 1}, 5.0, 30)
    found = after.since(before)
    assert (found.writes, found.requests["LIST"], found.processor, found.connections) == (5, 4, 3.0, 30)
    text = report("head", 5, found, 12.0, (after, 3.0))
    assert "| rollout | 12 | 5 | 1.00 | 4 | 0 | 30 | 3 |" in text
    assert text.endswith("The restarted API server was ready after 3 s.")


def test_the_rollout_is_reported_also_if_the_api_server_does_not_start_again() -> None:
    text = report("head", 5, Moment({"POST": 5}, 2.0, 10), 12.0, "not ready within 120 s")
    assert "| rollout | 12 | 5 | 1.00 | 0 | 0 | 10 | 2 |" in text
    assert text.endswith("The restart of the API server was not measured: not ready within 120 s")
