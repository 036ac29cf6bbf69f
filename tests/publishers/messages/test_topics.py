"""The topics: what is built is taken apart again, and what is none of ours is None, whatever it is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from publishers.messages.topics import (
    MAX_LABEL_BYTES,
    MAX_RANK,
    MAX_TOPIC_LENGTH,
    ParsedTopic,
    RunKey,
    Topics,
    escape_level,
    is_label,
    is_name,
    unescape_level,
)

TOPICS = Topics()
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=64)
HOSTILE = st.text("a.~+#/$ @é€😀%\\", min_size=1, max_size=32)
LABELS = (HOSTILE | st.text(min_size=1, max_size=40)).filter(is_label)
KEYS = st.builds(RunKey, LABELS, NAMES, NAMES)
LEVELS = st.sampled_from(
    ["host", "user", "job", "run", "rank", "node", "gpu", "plan", "grid", "status", "energy", "trial", "request"]
) | st.sampled_from(["", "0", "+", "#", "a b", "é", "~2e", "~2E", "~41", "~", "~ff", "."])
SAFE = re.compile(r"[A-Za-z0-9_~-]+\Z")


@given(st.text())
def test_arbitrary_text_is_never_an_error(text: str) -> None:
    assert TOPICS.parse(text) is None
    TOPICS.parse(f"{TOPICS.root}/{text}")


@given(st.lists(LEVELS | NAMES, max_size=12))
def test_near_topics_are_never_an_error(levels: list[str]) -> None:
    parsed = TOPICS.parse("/".join([TOPICS.root, *levels]))
    if parsed is not None:
        job, run = (parsed.run.job, parsed.run.run) if parsed.run else (None, None)
        names = (job, run, parsed.node, parsed.gpu_uuid, parsed.zone)
        assert all(name is None or is_name(name) for name in names)
        assert all(name is None or is_label(name) for name in (parsed.boot_id, parsed.run and parsed.run.user))


@given(LABELS, KEYS, st.integers(0, MAX_RANK), st.sampled_from(["status", "iterations"]))
def test_a_ranks_topic_is_parsed_back(boot_id: str, key: RunKey, rank: int, leaf: str) -> None:
    topic = TOPICS.rank(boot_id, key, rank, leaf)
    assert TOPICS.parse(topic) == ParsedTopic(leaf=leaf, boot_id=boot_id, run=key, rank=rank)


@given(
    KEYS,
    st.sampled_from(
        ["metric", "trial/request", "trial/answer", "trial/times", "trial/failure", "profile", "schedule", "energy"]
    )
    | st.sampled_from(["command", "notice", "set", "set/result"]),
)
def test_a_runs_topic_is_parsed_back(key: RunKey, leaf: str) -> None:
    assert TOPICS.parse(TOPICS.run(key, leaf)) == ParsedTopic(leaf=leaf, run=key)


@given(NAMES, NAMES, KEYS)
def test_the_topics_of_nodes_and_grids_are_parsed_back(node: str, other: str, key: RunKey) -> None:
    assert TOPICS.parse(TOPICS.node_status(node)) == ParsedTopic(leaf="status", node=node)
    for leaf in ("energy", "limit", "set", "set/result"):
        assert TOPICS.parse(TOPICS.gpu(node, other, leaf)) == ParsedTopic(leaf=leaf, node=node, gpu_uuid=other)
    for leaf in ("carbon", "price"):
        assert TOPICS.parse(TOPICS.grid(other, leaf)) == ParsedTopic(leaf=leaf, zone=other)
    for leaf in ("energy", "profile"):
        assert TOPICS.parse(TOPICS.run_on_node(key, node, leaf)) == ParsedTopic(leaf=leaf, run=key, node=node)
    assert TOPICS.parse(TOPICS.plan(node, key)) == ParsedTopic(leaf="plan", run=key, node=node)


@given(HOSTILE | st.text(min_size=1))
def test_no_name_writes_a_character_that_a_broker_gives_a_meaning(text: str) -> None:
    level = escape_level(text)
    assert SAFE.match(level)
    if text.isprintable():  # no surrogates
        assert unescape_level(level) == text


@given(LABELS, KEYS, NAMES)
def test_no_level_of_a_topic_has_a_dot_a_blank_or_a_wildcard(boot_id: str, key: RunKey, name: str) -> None:
    topics = [
        TOPICS.rank(boot_id, key, 0, "status"),
        TOPICS.run_on_node(key, name),
        TOPICS.plan(name, key),
        TOPICS.gpu(name, name, "limit"),
        TOPICS.grid(name, "carbon"),
    ]
    for topic in topics:
        assert all(SAFE.match(level) for level in topic.removeprefix(f"{TOPICS.root}/").split("/"))


@given(st.text("~0123456789abcdefABCDEFghz._- ", max_size=16))
def test_a_level_that_is_parsed_is_written_in_the_one_way(level: str) -> None:
    text = unescape_level(level)
    assert text is None or escape_level(text) == level


def test_the_longest_names_fit_a_topic() -> None:
    label, name = "." * MAX_LABEL_BYTES, "." * 64
    topic = Topics("r" * 128).rank(label, RunKey(label, name, name), MAX_RANK, "iterations")
    assert len(topic) <= MAX_TOPIC_LENGTH
    assert Topics("r" * 128).parse(topic) is not None


@pytest.mark.parametrize("text", ["", "a\nb", "\x1b[2J", "\x9b", "\u202e", "\ud800", "x" * 129, "é" * 65, "a\0"])
def test_some_texts_name_no_user(text: str) -> None:
    assert not is_label(text)


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
        "gridchase/v1/grid/a~20b/carbon",
        "gridchase/v1/grid/a.b/carbon",
        "gridchase/v1/grid/a~2Eb/carbon",
        "gridchase/v1/grid/~44E/carbon",
        "gridchase/v1/grid/a~2/carbon",
        "gridchase/v1/user/~ff/job/j/run/r/energy",
        "gridchase/v1/user/~0a/job/j/run/r/energy",
        "gridchase/v1/user/~c0~ae/job/j/run/r/energy",
        "gridchase/v1/host/b/user/u/job/j/run/r/rank/-1/status",
        "gridchase/v1/host/b/user/u/job/j/run/r/rank/00/status",
        "gridchase/v1/host/b/user/u/job/j/run/r/rank/65536/status",
        "gridchase/v1/host/b/user/u/job/j/run/r/rank/٣/status",
        "gridchase/v1/host/b/user/u/job/j/run/r/rank/0/metric",
        "gridchase/v1/host/b/user/u/job/j/run/r/energy",
        "gridchase/v1/user/u/job/j/run/r/rank/0/status",
        "gridchase/v1/user/u/job/j/run/r/trial",
        "gridchase/v1/user/u/job/j/run/r/plan",
        "gridchase/v1/user/u/job/+/run/r/energy",
        "gridchase/v1/user/u/job/j/run/r\n/energy",
        "gridchase/v1/node/n/gpu/g/set/status",
        "gridchase/v1/node/n/plan/u/j",
        "gridchase/v1/job/j/run/r/energy",
        f"gridchase/v1/grid/{'z' * 65}/carbon",
        f"gridchase/v1/user/{'~2e' * 129}/job/j/run/r/energy",
        f"gridchase/v1/{'x/' * 1_500}",
    ],
)
def test_foreign_topics_are_none(topic: str) -> None:
    assert TOPICS.parse(topic) is None


def test_topics_of_another_root_are_foreign() -> None:
    other = Topics("site/a")
    assert other.parse("site/a/node/n/status") == ParsedTopic(leaf="status", node="n")
    assert other.parse(TOPICS.node_status("n")) is None


def test_a_filter_has_a_wildcard_for_what_is_not_given() -> None:
    key = RunKey("u", "j", "r")
    ranks = "gridchase/v1/host/{}/user/{}/job/{}/run/{}/rank/{}/status"
    assert TOPICS.rank_filter("status", boot_id="b") == ranks.format("b", "+", "+", "+", "+")
    assert TOPICS.rank_filter("status", run=key, rank=0) == ranks.format("+", "u", "j", "r", "0")
    assert TOPICS.run_filter("metric") == "gridchase/v1/user/+/job/+/run/+/metric"
    assert TOPICS.part_filter("energy", run=key) == "gridchase/v1/user/u/job/j/run/r/node/+/energy"
    assert TOPICS.plan_filter(run=key) == "gridchase/v1/node/+/plan/u/j/r"
    assert TOPICS.gpu(None, None, "limit") == "gridchase/v1/node/+/gpu/+/limit"


def test_a_user_may_be_named_like_a_wildcard() -> None:
    assert TOPICS.run(RunKey("+", "j", "r"), "metric") == "gridchase/v1/user/~2b/job/j/run/r/metric"


@pytest.mark.parametrize(
    ("topic", "sender", "run"),
    [
        (TOPICS.rank("boot", RunKey("a.b", "j", "r"), 0, "status"), b"user/a~2eb", b"host/boot/user/a~2eb/job/j/run/r"),
        (TOPICS.run(RunKey("a", "j", "r"), "trial/request"), b"user/a", b""),
        (TOPICS.plan("n", RunKey("a", "j", "r")), b"node/n", b""),
        (TOPICS.node_status("n"), b"node/n", b""),
        (TOPICS.grid("DE", "carbon"), b"grid/DE", b""),
        (f"{TOPICS.root}/host/boot/user/a", b"user/a", b"host/boot/user/a"),
        (f"{TOPICS.root}/host/boot", b"", b""),
        (f"{TOPICS.root}/mine/a", b"", b""),
        ("user/a/job/j", b"", b""),
        (TOPICS.rank("boot", RunKey("a", "j", "r" * MAX_TOPIC_LENGTH), 0, "status"), b"", b""),
    ],
)
def test_the_sender_is_cut_from_a_topic_without_parsing_it(topic: str, sender: bytes, run: bytes) -> None:
    assert TOPICS.sender(topic.encode()) == (sender, run)


@given(st.binary(max_size=60))
def test_any_bytes_have_a_sender_or_none(levels: bytes) -> None:
    sender, run = TOPICS.sender(TOPICS.root.encode() + b"/" + levels)
    assert run == b"" or sender in run
