"""What a run has cost on other nodes, from what they have told."""

import pytest

from controller.holding import Holding
from controller.ranks import Place, Ranks
from controller.run_news import MAX_NODES, RunNews
from tests.controller.messages import rank_status, run_energy


def news_of(**parts_j: float) -> RunNews:
    """Return the news of a run on node-a that has heard of other nodes' energy [J], used in 100 s."""
    ranks = Ranks(name="resnet50/run-1", lease_s=60.0)
    ranks.hear_status(0, rank_status(world_size=2), now_s=0.0)
    news = RunNews(
        Place(job="resnet50", run="run-1", node="node-a"),
        ranks=ranks,
        holding=Holding(),
        publish=lambda *_: None,
    )
    for node, used_j in parts_j.items():
        part = run_energy(energy_j=used_j, duration_s=100.0, carbon_g=used_j / 1e3, cost=used_j / 1e6)
        news.hear_energy(node.replace("_", "-"), part)
    return news


@pytest.mark.parametrize(("kind", "spent"), [("energy", 2.0), ("carbon", 7_200.0), ("price", 7.2)])
def test_what_other_nodes_have_spent_adds_up_in_the_unit_of_the_budget(kind: str, spent: float) -> None:
    news = news_of(node_a=9e9, node_b=3.6e6, node_c=3.6e6)
    assert news.spent_elsewhere(kind=kind, host_power_w=0.0, pue=1.0) == pytest.approx(spent)


def test_the_machines_of_other_nodes_and_the_building_are_paid_too() -> None:
    news = news_of(node_b=3.6e6)
    assert news.spent_elsewhere(kind="energy", host_power_w=36_000.0, pue=1.5) == pytest.approx(3.0)


def test_a_flood_of_nodes_is_remembered_for_a_bounded_number_of_them() -> None:
    news = news_of(**{f"node_{number:05d}": 3.6e6 for number in range(MAX_NODES + 5)})
    assert news.spent_elsewhere(kind="energy", host_power_w=0.0, pue=1.0) == pytest.approx(MAX_NODES)


def test_a_last_word_counts_where_others_came_before_it() -> None:
    news = news_of(node_b=3.6e6)
    news.hear_energy("node-b", run_energy(energy_j=7.2e6, final=True))
    news.hear_energy("node-c", run_energy(energy_j=7.2e6, final=True))
    assert news.spent_elsewhere(kind="energy", host_power_w=0.0, pue=1.0) == pytest.approx(2.0), "of an earlier run"
