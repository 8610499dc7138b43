"""Which node is chosen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.placement import Want, choose_node
from app.records import NodeRecord, NodeState
from rock.errors import BadRequest, NoCapacity

GB = 1024**3


def node(name, cpus=4.0, memory=8 * GB, used_cpus=0.0, used_memory=0, **options):
    return NodeRecord(name, cpus, memory, used_cpus, used_memory, **options)


def test_the_freest_by_its_scarcer_resource():
    nodes = [node("a", used_cpus=1), node("b", used_memory=6 * GB), node("c", used_cpus=3)]
    assert choose_node(nodes, Want(1, GB)).node_id == "a"


def test_the_cluster_is_a_wish():
    nodes = [node("a", labels={"cluster": "x"}, used_cpus=3), node("b")]
    assert choose_node(nodes, Want(1, GB, cluster="x")).node_id == "a"
    assert choose_node(nodes, Want(2, GB, cluster="x")).node_id == "b"
    assert choose_node(nodes, Want(1, GB, cluster="zb")).node_id == "b"


def test_a_route_key_stays_on_its_node():
    nodes = [node(name) for name in "abcde"]
    chosen = {choose_node(nodes, Want(1, GB, route_key="k")).node_id for _ in range(5)}
    assert len(chosen) == 1
    others = [one for one in nodes if one.node_id not in chosen]
    full = node(chosen.pop(), used_cpus=4)
    with pytest.raises(NoCapacity, match="route_key 'k'"):
        choose_node([*others, full], Want(1, GB, route_key="k"))


def test_when_a_node_leaves_only_its_keys_move():
    nodes = [node(name) for name in "abcd"]
    before = {key: choose_node(nodes, Want(1, GB, route_key=key)).node_id for key in map(str, range(50))}
    after = {key: choose_node(nodes[1:], Want(1, GB, route_key=key)).node_id for key in before}
    assert all(after[key] == name for key, name in before.items() if name != "a")
    assert len(set(before.values())) == 4


@pytest.mark.parametrize(
    ("want", "text"),
    [(Want(5, GB), "cpus: 5 is more"), (Want(1, 9 * GB), "memory: "), (Want(4, 4 * GB), "no one node")],
)
def test_more_than_any_node_has_is_the_callers_fault(want, text):
    with pytest.raises(BadRequest, match=text):
        choose_node(
            [node("a"), node("b", cpus=2.0)] if want.cpus != 4 else [node("a", memory=GB), node("b", 2.0)], want
        )


def test_no_node_draining_full():
    with pytest.raises(NoCapacity, match="no node is alive"):
        choose_node([], Want(1, GB))
    with pytest.raises(NoCapacity, match="draining"):
        choose_node([node("a", state=NodeState.DRAINING)], Want(1, GB))
    with pytest.raises(NoCapacity, match="no room now"):
        choose_node([node("a", used_cpus=3.5)], Want(1, GB))


@given(
    st.lists(st.tuples(st.floats(0, 4), st.integers(0, 8 * GB)), min_size=1, max_size=6),
    st.floats(0.01, 6), st.integers(1, 10 * GB),
)  # fmt: skip
def test_what_is_chosen_fits(used, cpus, memory):
    nodes = [node(str(index), used_cpus=one, used_memory=two) for index, (one, two) in enumerate(used)]
    try:
        chosen = choose_node(nodes, Want(cpus, memory))
    except BadRequest:
        assert cpus > 4 or memory > 8 * GB
    except NoCapacity:
        assert not any(one.fits(cpus, memory) for one in nodes)
    else:
        assert chosen.fits(cpus, memory)
