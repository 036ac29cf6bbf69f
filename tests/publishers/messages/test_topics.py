"""The topics: what is built is taken apart again, and what is none of ours is None, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.messages.topics import MAX_RANK, ParsedTopic, Topics, is_name

TOPICS = Topics()
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=64)
LEVELS = st.sampled_from(
    ["job", "run", "rank", "node", "gpu", "grid", "status", "energy", "trial", "request", "", "0", "+", "#", "a b", "é"]
)


@given(st.text())
def test_arbitrary_text_is_never_an_error(text: str) -> None:
    assert TOPICS.parse(text) is None
    TOPICS.parse(f"{TOPICS.root}/{text}")


@given(st.lists(LEVELS | NAMES, max_size=10))
def test_near_topics_are_never_an_error(levels: list[str]) -> None:
    address = TOPICS.parse("/".join([TOPICS.root, *levels]))
    assert address is None or all(
        name is None or is_name(name)
        for name in (address.job, address.run, address.node, address.gpu_uuid, address.zone)
    )


@given(NAMES, NAMES, st.integers(0, MAX_RANK), st.sampled_from(["status", "iterations"]))
def test_a_ranks_topic_is_parsed_back(job: str, run: str, rank: int, leaf: str) -> None:
    assert TOPICS.parse(TOPICS.rank(job, run, rank, leaf)) == ParsedTopic(leaf=leaf, job=job, run=run, rank=rank)


@given(
    NAMES,
    NAMES,
    st.sampled_from(
        [
            "metric",
            "trial/request",
            "trial/answer",
            "trial/times",
            "trial/failure",
            "profile",
            "plan",
            "energy",
            "command",
        ]
    ),
)
def test_a_runs_topic_is_parsed_back(job: str, run: str, leaf: str) -> None:
    assert TOPICS.parse(TOPICS.run(job, run, leaf)) == ParsedTopic(leaf=leaf, job=job, run=run)


@given(NAMES, NAMES, NAMES)
def test_the_topics_of_nodes_and_grids_are_parsed_back(node: str, other: str, third: str) -> None:
    assert TOPICS.parse(TOPICS.node_status(node)) == ParsedTopic(leaf="status", node=node)
    for leaf in ("energy", "limit"):
        assert TOPICS.parse(TOPICS.gpu(node, other, leaf)) == ParsedTopic(leaf=leaf, node=node, gpu_uuid=other)
    for leaf in ("carbon", "price"):
        assert TOPICS.parse(TOPICS.grid(other, leaf)) == ParsedTopic(leaf=leaf, zone=other)
    for leaf in ("energy", "profile"):
        part = ParsedTopic(leaf=leaf, job=other, run=third, node=node)
        assert TOPICS.parse(TOPICS.run_on_node(other, third, node, leaf)) == part


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "gridchase/v1",
        "gridchase/v1/",
        "gridchase/v2/grid/DE/carbon",
        "other/gridchase/v1/grid/DE/carbon",
        "gridchase/v1/grid/DE/wind",
        "gridchase/v1/grid/DE/carbon/",
        "gridchase/v1/grid/a b/carbon",
        "gridchase/v1/job/j/run/r/rank/-1/status",
        "gridchase/v1/job/j/run/r/rank/65536/status",
        "gridchase/v1/job/j/run/r/rank/٣/status",
        "gridchase/v1/job/j/run/r/rank/0/metric",
        "gridchase/v1/job/j/run/r/trial",
        "gridchase/v1/job/+/run/r/energy",
        "gridchase/v1/job/j/run/r\n/energy",
        f"gridchase/v1/grid/{'z' * 65}/carbon",
        f"gridchase/v1/{'x/' * 300}",
    ],
)
def test_foreign_topics_are_none(topic: str) -> None:
    assert TOPICS.parse(topic) is None


def test_topics_of_another_root_are_foreign() -> None:
    other = Topics("site/a")
    assert other.parse("site/a/node/n/status") == ParsedTopic(leaf="status", node="n")
    assert other.parse(TOPICS.node_status("n")) is None


def test_the_filters_match_what_the_builders_build() -> None:
    assert TOPICS.all_ranks("status") == TOPICS.rank("+", "+", 0, "status").replace("/0/", "/+/")
    assert TOPICS.all_runs("metric") == TOPICS.run("+", "+", "metric")
