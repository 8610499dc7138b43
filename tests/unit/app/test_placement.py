"""What is said of room, and the names that placement works with. The choice itself: test_line.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement import could_take, image_mark, pool_of, route_mark, shortage, too_large
from app.records import NodeRecord, NodeState, SandboxRecord
from rock.errors import BadRequest, NoCapacity

GB = 1024**3


def node(name, cpus=4.0, memory=8 * GB, used_cpus=0.0, used_memory=0, **options):
    return NodeRecord(name, cpus, memory, used_cpus, used_memory, **options)


def want(cpus=1.0, memory=GB, cluster=""):
    return SandboxRecord("s", "", "", cpus, memory, 0, 0, identity={"cluster": cluster}, line=pool_of(cluster))


@pytest.mark.parametrize(
    ("cpus", "memory", "text"),
    [(5, GB, "cpus: 5 is more"), (1, 9 * GB, "memory: "), (4, 8 * GB, "no one node")],
)
def test_more_than_any_node_has_is_the_callers_fault(cpus, memory, text):
    error = too_large(want(cpus, memory), 4, 8 * GB, 2)
    assert isinstance(error, BadRequest) and text in error.message and not error.retryable


def test_without_a_node_it_may_help_to_come_back():
    error = too_large(want(cluster="x"), 0, 0, 0)
    assert isinstance(error, NoCapacity) and error.retryable
    assert "no node is alive that is open to cluster 'x'" in error.message


def test_what_is_short_is_named():
    assert "draining" in shortage(want(), [node("a", state=NodeState.DRAINING)], 1)
    assert "no living node" in shortage(want(5), [node("a")], 1)
    text = shortage(want(), [node("a", used_cpus=3.5), node("b", used_cpus=4, pool="x")], 3)
    assert "at most 0.5 CPUs" in text and "2 starts are ahead" in text


def test_who_could_take_it():
    nodes = [node("a"), node("b", pool="x"), node("c", cpus=0.5), node("d", used_cpus=4), node("e", pool="y")]
    assert [one.node_id for one in could_take(want(), nodes)] == ["a", "b", "d", "e"]
    assert [one.node_id for one in could_take(want(cluster="x"), nodes)] == ["a", "b", "d"]


@pytest.mark.parametrize("name", ["python", "python:latest", "docker.io/library/python:latest", "library/python"])
def test_one_image_under_its_names(name):
    assert image_mark(name) == image_mark("python")
    assert image_mark(name) != image_mark("python:3.11")


def test_other_images_are_others():
    names = ["h:5000/python", "h:5000/python:3", "other/python", "python@sha256:" + "0" * 64]
    assert len({image_mark(name) for name in [*names, "python"]}) == 5


@given(st.text(max_size=30))
def test_any_cluster_is_a_part_of_a_key(cluster):
    part = pool_of(cluster)
    assert bool(part) == bool(cluster) and len(part) <= 128 and not set(part) & set(":*\n ")


def test_route_keys_of_two_owners_are_two():
    assert route_mark("a", "k") != route_mark("b", "k") and route_mark("a", "") == ""
