"""What scripts/benchmark allocation measures is what it says."""

from __future__ import annotations

from bench.allocation import TYPE, Figures, cold, fill, room_on_the_last_node, text

from dra_driver.simulator.emulated_nodes import emulated


def test_a_full_cluster_has_four_claims_on_each_node() -> None:
    assert fill(emulated([(TYPE, 3)])) == 12


def test_the_cold_claim_lands_where_there_is_room() -> None:
    cluster = emulated([(TYPE, 12)])
    assert cold(cluster) == "node-01"
    assert cold(room_on_the_last_node(cluster)) == "node-12"
    assert fill(room_on_the_last_node(cluster)) == 4


def test_the_report_names_figures_and_targets() -> None:
    lines = text(Figures(nodes=10, claims=40, fill=1.234, cold=0.5, cold_last=0.75, start=0.4)).splitlines()
    assert lines[2] == "| 40 claims of four connected chips until 10 nodes are full | 1.23 | 60 |"
    assert [line.split("|")[2].strip() for line in lines[3:]] == ["0.50", "0.75", "0.40"]
