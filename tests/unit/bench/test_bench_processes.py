"""Whose process is whose, from made-up tables; and the texts of /proc."""

from bench.memory import Container, footprint
from bench.processes import (
    Process,
    ancestors,
    descendants,
    parse_listeners,
    parse_rollup,
    parse_stat,
    service_of,
)

CONTAINER = "c0ffee" * 10 + "c0de"


def process(pid, parent, name="python", command="", cgroup="0::/", environ=""):
    """Return a table entry."""
    return Process(pid, parent, name, command, cgroup, environ)


def table_of(*entries):
    """Return entries as a table."""
    return {entry.pid: entry for entry in entries}


TABLE = table_of(
    process(1, 0, "systemd"),
    process(10, 1, "bash"),
    process(11, 10, "rock"),
    process(12, 11, "gunicorn"),
    process(13, 12, "gunicorn"),
    process(20, 10, "make"),
    process(21, 20, "python"),
    process(30, 1, "containerd-shim", f"containerd-shim-runc-v2 -namespace moby -id {CONTAINER}"),
    process(31, 30, "bash", "bash -c x", f"4:memory:/docker/{CONTAINER}"),
    process(32, 31, "bash", "bash -i", f"0::/system.slice/docker-{CONTAINER}.scope"),
    process(33, 1, "docker-proxy", "docker-proxy -host-port 1 -container-ip 172.17.0.2 -container-port 8"),
    process(34, 1, "docker-proxy", "docker-proxy -host-port 2 -container-ip 172.17.0.22 -container-port 8"),
    process(40, 13, "bash", "bash", environ="PATH=/bin\0ROCK_SANDBOX_ID=box-1\0"),
    process(41, 13, "bash", "bash", environ="ROCK_SANDBOX_ID=box-10\0"),
)


def test_the_service_ends_below_the_shell_that_started_it():
    assert ancestors(TABLE, 13) == [12, 11, 10, 1]
    assert service_of(TABLE, 13, ours=21) == 11
    assert descendants(TABLE, 11) == {11, 12, 13, 40, 41}


def test_what_started_this_program_is_not_the_service():
    table = table_of(process(1, 0), process(5, 1, "runner"), process(6, 5, "api"), process(7, 5, "python"))
    assert service_of(table, 6, ours=7) == 6
    assert service_of(table, 6, ours=99) == 5


def test_a_container_is_what_runs_in_it_and_what_runs_for_it():
    found = footprint(TABLE, "box-9", Container(CONTAINER, "172.17.0.2"))
    assert found.inside == {31, 32}
    assert found.outside == {30, 33}


def test_a_local_sandbox_is_marked_in_its_environment():
    found = footprint(TABLE, "box-1", None)
    assert found.inside == {40} and found.outside == set()


def test_names_with_brackets_do_not_confuse_the_parent():
    assert parse_stat("42 (a) b (c)) S 7 42 42 0") == ("a) b (c)", 7)


def test_the_rollup_of_a_kernel_thread_is_empty():
    assert (
        parse_rollup("1000-2000 ---p 00:00 0 [rollup]\nRss: 12 kB\nPss:                 5 kB\nPss_Dirty: 4 kB\n")
        == 5120
    )
    assert parse_rollup("") == 0


def test_listeners_are_found_by_port_and_state():
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1\n"
        "   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 222 1\n"
        "   2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1\n"
    )
    assert parse_listeners(text, 8080) == {"111"}
