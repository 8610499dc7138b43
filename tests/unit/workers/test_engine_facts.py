"""An engine's answers, read into our words."""

import os

from workers.deployments.abstract import ContainerEvent
from workers.deployments.engine_facts import event_of, layer_bytes, measure, state_of, usage_between

STATE = {
    "Status": "running",
    "Running": True,
    "ExitCode": 0,
    "OOMKilled": False,
    "Error": "",
    "StartedAt": "2026-01-01T00:00:00Z",
}


def test_an_unknown_container_does_not_exist():
    assert not state_of(None).exists


def test_a_running_container():
    network = {
        "IPAddress": "",
        "Networks": {"b": {"IPAddress": "10.0.0.2"}},
        "Ports": {"80/tcp": [{"HostPort": "5"}], "81/tcp": None},
    }
    state = state_of({"State": STATE, "NetworkSettings": network})
    assert (state.running, state.exit_code, state.ip, state.port_mapping) == (True, None, "10.0.0.2", {80: 5})
    assert state.started_at == "2026-01-01T00:00:00Z"


def test_a_container_that_never_started_has_no_exit_code_and_no_start():
    created = {**STATE, "Status": "created", "Running": False, "StartedAt": "0001-01-01T00:00:00Z"}
    state = state_of({"State": created})
    assert (state.exit_code, state.started_at) == (None, "")


def test_an_ended_container_tells_how():
    state = state_of({"State": {**STATE, "Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True}})
    assert (state.exit_code, state.oom_killed) == (137, True)


def test_usage_is_in_percent_of_the_containers_own_limits():
    facts = {"HostConfig": {"NanoCpus": 500_000_000, "Memory": 1000}}
    before = {"cpu": 0.0, "mem": 0.0, "net": 0.0, "time": 10.0}
    usage = usage_between(before, {"cpu": 0.25e9, "mem": 250.0, "net": 7.0, "time": 11.0}, facts, local=False)
    assert (usage.cpu, usage.mem, usage.disk, usage.net) == (50.0, 25.0, None, 7)


def test_a_cpu_limit_told_as_a_quota_counts_too():
    facts = {"HostConfig": {"CpuQuota": 200_000, "CpuPeriod": 100_000}}
    zero = {"cpu": 0.0, "mem": 0.0, "net": 0.0, "time": 0.0}
    assert usage_between(zero, {**zero, "cpu": 1e9, "time": 1.0}, facts, local=False).cpu == 50.0


def test_page_cache_is_not_used_memory():
    stats = {
        "cpu_stats": {"cpu_usage": {"total_usage": 5}},
        "memory_stats": {"usage": 100, "stats": {"total_inactive_file": 30, "inactive_file": 1}},
        "networks": {"eth0": {"rx_bytes": 1, "tx_bytes": 2}},
    }
    assert measure(stats) == {"cpu": 5.0, "mem": 70.0, "net": 3.0}


def raw(action: str, **attributes: str) -> dict:
    return {"Action": action, "timeNano": 2_000_000_000, "Actor": {"Attributes": {"rock.sandbox": "s", **attributes}}}


def test_a_death_after_running_out_of_memory_says_so():
    seen: set[str] = set()
    assert event_of(raw("oom"), seen)[1].oom
    assert event_of(raw("die", exitCode="137"), seen) == (2.0, ContainerEvent("s", "die", 137, True))
    assert event_of(raw("destroy"), seen)[1].event == "destroy"
    assert not event_of(raw("die", exitCode="0"), seen)[1].oom


def test_podmans_words_are_understood():
    assert event_of(raw("remove", containerExitCode="3"), set())[1] == ContainerEvent("s", "destroy", 3)


def test_a_layer_is_measured_by_what_it_takes(tmp_path):
    facts = {"GraphDriver": {"Data": {"UpperDir": str(tmp_path)}}}
    empty = layer_bytes(facts)
    (tmp_path / "full").write_bytes(bytes(3 << 20))
    os.link(tmp_path / "full", tmp_path / "the same")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert 3 << 20 <= layer_bytes(facts) - empty < 4 << 20


def test_a_layer_that_cannot_be_seen_has_no_size(tmp_path):
    for facts in ({}, {"GraphDriver": {"Data": None}}, {"GraphDriver": {"Data": {"UpperDir": str(tmp_path / "no")}}}):
        assert layer_bytes(facts) is None
