"""Sessions of another user than the sandbox's own: as any session, but for whose it is. Containers only; a local sandbox has one user."""

import random
import time

import pytest

from tests.wire import until

WHO = "echo $(id -u):$(id -g) $(id -un) $HOME $USER $LOGNAME"


@pytest.fixture
def box(stack, shared):
    """A sandbox in a container."""
    if stack.runtime == "local":
        pytest.skip("a local sandbox has one user")
    return shared


@pytest.fixture
def nobody(box):
    """A session of user nobody in a folder of its own."""
    session = box.open(remote_user="nobody")
    session.output('cd "$(mktemp -d)"')
    yield session
    session.close()


@pytest.fixture
def app(box):
    """The name of a user that is in two groups and has a home."""
    made = box.execute(
        "id app 2>/dev/null || { groupadd -g 4400 crew; useradd -m -u 4321 -s /bin/bash -G crew app; }", shell=True
    )
    assert made.result["exit_code"] == 0
    return "app"


def test_S21_a_session_runs_as_the_user_it_names(nobody):
    assert nobody.output(WHO) == "65534:65534 nobody /nonexistent nobody nobody"
    assert nobody.output("touch x; stat -c %U:%G x; umask") == "nobody:nogroup\n0022"
    nobody.run("echo hi >/etc/x", check="raise").failed(6000, "exit code 1")


def test_S21_groups_home_and_shell_are_those_of_the_image(box, app):
    session = box.open(remote_user=app)
    assert session.output(WHO) == "4321:4321 app /home/app app app"
    assert (
        session.output('id -Gn; echo $SHELL; cd; pwd; echo "${GROUPS[*]}"')
        == "app crew\n/bin/bash\n/home/app\n4321 4400"
    )
    session.close()


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("1000", "1000:0"),
        ("1000:1000", "1000:1000"),
        ("nobody:0", "65534:0"),
        ("65534", "65534:65534"),
        ("root", "0:0"),
    ],
)
def test_S21_numbers_need_no_name(box, user, ids):
    session = box.open(remote_user=user)
    assert session.output("echo $(id -u):$(id -g)") == ids
    session.close()


@pytest.mark.parametrize("user", ["nope", "nobody:nope", "4294967296", "99999999999"])
def test_S21_an_unknown_user_is_named_at_once(box, user):
    begun = time.monotonic()
    box.post("/create_session", session="s", remote_user=user).failed(4000, "remote_user", user, kind="bad_request")
    assert time.monotonic() - begun < 3
    box.post("/close_session", session="s").failed(4000, "not found")


@pytest.mark.parametrize("user", ["root; touch /tmp/p", "", "-x", "a b", "$(id)", "a:b:c", "../x", "a\nb", 5])
def test_X04_a_user_is_never_code(shared, user):
    shared.post("/create_session", session="s", remote_user=user).failed(4000, "remote_user", kind="bad_request")
    assert shared.execute(["test", "-e", "/tmp/p"]).result["exit_code"] == 1


def test_a_local_sandbox_says_that_it_has_one_user(stack, shared):
    if stack.runtime != "local":
        pytest.skip("only a local sandbox has one user")
    shared.post("/create_session", session="s", remote_user="nobody").failed(4000, "remote_user", "one user")


def test_output_streams_and_large_commands_are_as_ever(nobody):
    assert nobody.output("echo out; echo err >&2; echo x >/dev/stdout; echo y >/dev/stderr") == "out\nerr\nx\ny"
    assert len(nobody.output("head -c 3000000 /dev/zero | tr '\\0' a")) == 3_000_000
    assert nobody.output(f"x='{'b' * 200_000}'; echo ${{#x}}") == "200000"
    assert nobody.output("v=1; export w=2; f() { echo f$v; }; (exit 0)") == ""
    assert nobody.output("f; cat; echo $w; printf 'a\\nb'") == "f1\n2\na\nb"
    assert nobody.run("(exit 7)").result["exit_code"] == 7
    assert nobody.output("echo $?") == "7"
    nobody.run("if", check="raise").failed(6000, kind="command_failed")


def test_a_command_ends_at_its_time_with_all_that_it_started(nobody, box):
    long = str(random.randrange(10**6, 10**8))
    started = f"echo a; (trap '' INT TERM; sleep {long}) & (setsid sleep {long} &) ; sleep {long}"
    result = nobody.run(started, timeout=0.5).failed(6000, "timeout", kind="command_timeout")
    assert result["output"] == "a"
    assert nobody.output("echo ok; id -un") == "ok\nnobody"
    left = f"grep -lz {long} /proc/[0-9]*/cmdline | grep -v self"
    until(lambda: box.execute(f"pgrep -fx 'sleep {long}'").result["stdout"] == "", 10, f"the end of {left}")
    nobody.run("while :; do :; done", timeout=0.5).failed(6000, kind="command_timeout")
    assert nobody.output("echo ok") == "ok"


def test_a_job_of_an_earlier_command_survives_a_timeout(nobody):
    nobody.output("sleep 98765 & echo $! >job")
    nobody.run("sleep 98764", timeout=0.5).failed(6000, kind="command_timeout")
    assert nobody.output("kill -0 $(<job) && echo alive; kill $(<job)").startswith("alive")


def test_a_shell_that_ends_is_opened_again_as_the_same_user(nobody):
    folder = nobody.output("export kept=1; pwd")
    result = nobody.run("exit 3").result
    assert result["exit_code"] == 3 and "ended" in result["failure_reason"]
    assert nobody.output("id -un; echo $kept; pwd; echo $HOME") == f"nobody\n1\n{folder}\n/nonexistent"
    assert nobody.run("kill -9 $$").result["exit_code"] == 137
    assert nobody.output("id -un") == "nobody"
    assert nobody.run("bash -c 'kill -9 -1'").result["exit_code"] == 137
    assert nobody.output("id -un") == "nobody"


def test_a_folder_that_the_user_may_not_enter_is_not_where_the_session_is(box, api, app):
    closed = api.start(docker_args=["--workdir", "/root"])
    closed.execute("useradd -m app; chmod 700 /root", shell=True)
    session = closed.open(remote_user=app)
    assert session.output("pwd") == "/home/app"
    closed.stop()


def test_the_session_cannot_reach_what_is_the_keepers(nobody, box):
    root = box.open()
    for folder in ("/run/rock", "/run/rock-users"):
        assert nobody.run(f"ls {folder}").result["exit_code"] != 0
        assert nobody.run(f"touch {folder}/x").result["exit_code"] != 0
    assert nobody.run("cd /run/rock").result["exit_code"] != 0
    assert nobody.run("ls /proc/1/fd /proc/1/environ; cat /proc/1/environ").result["exit_code"] != 0
    assert nobody.run("kill -9 1; kill -STOP 1").result["exit_code"] != 0
    root.output("export secret=1")
    files = box.execute("ls -d /run/rock/* /run/rock-users/*", shell=True).result["stdout"].split()
    assert any("/e." in name for name in files) and any(name.endswith(".v") for name in files), files
    open_to = "for f in $FILES; do [[ -r $f || -w $f ]] && echo $f; done; :"
    other = box.open(remote_user="4242:4242")
    assert (
        other.run(open_to.replace("$FILES", " ".join(files))).result["output"] == ""
    )  # its own are newer than the list
    # Nothing inherited but the shell's own input, to read only.
    held = [
        line
        for line in nobody.output("find /proc/$$/fd -printf '%M %l\\n'").splitlines()
        if "/dev/null" not in line and "/run/rock-users/" not in line
    ]
    assert [line.partition(":")[0] for line in held if "pipe" in line or "/" in line] == ["lr-x------ pipe"], held
    other.close()
    root.close()


def test_X12_a_forged_report_reaches_no_other_session(nobody, box):
    root = box.open()
    request = {"request_id": f"r-{random.random()}", "wait": 0}
    assert root.run("sleep 2; echo true", **request).ok
    ids = box.execute("ls /run/rock", shell=True).result["stdout"].split()
    calls = [name[2:] for name in ids if name.startswith("p.")]
    assert calls
    forge = "v=$(compgen -G /dev/null); v=${BASH_SOURCE[0]%.c}.v; for i in $CALLS; do printf 'd %s 99 i\\nx %s 9 1\\n' $i $i >$v; done; echo $v"
    assert nobody.output(forge.replace("$CALLS", " ".join(calls))).endswith(".v")
    for _ in range(3):
        assert nobody.output("printf 'd %s 99 i\\n' ff >${BASH_SOURCE[0]%.c}.v; echo fine") == "fine"
    answer = until(lambda: _done(box, request["request_id"]), 10, "the answer")
    assert answer["output"] == "true" and answer["exit_code"] == 0
    root.close()


def test_X12_who_grades_as_another_user_sees_what_is_true(nobody, box):
    """As docs/security.md tells trainers to: the agent's session is nobody's, the grader's is root's."""
    grader = box.open()
    folder = grader.output('cd "$(mktemp -d)" && chmod 755 . && echo "print(6 * 7)" >tests.py && pwd')
    tampering = (f"echo 'print(1)' >{folder}/tests.py", f"mv {folder}/tests.py /tmp", "echo >$(type -P python3)",
                 "printf 'exit 0' >/root/.bashrc", "kill -9 -1", "mkdir -p ~/.config && echo >/etc/profile.d/x.sh")  # fmt: skip
    for attempt in tampering:
        nobody.run(f"{attempt}; alias python3='echo forged'; export PYTHONPATH=/tmp", check="ignore")
    assert grader.output("python3 tests.py") == "42"
    grader.close()


def _done(box, request_id):
    reply = box.api.get(f"/results/{request_id}", wait=5)
    return reply.result if reply.ok and "output" in reply.result else None


def test_two_users_side_by_side(nobody, box, app):
    other = box.open(remote_user=app)
    other.output("echo mine >/tmp/app-file; chmod 600 /tmp/app-file; sleep 98763 & echo $! >/tmp/app-pid")
    assert nobody.run("cat /tmp/app-file").result["exit_code"] == 1
    assert nobody.run("kill $(</tmp/app-pid)").result["exit_code"] == 1
    nobody.run("sleep 98762", timeout=0.3).failed(6000, kind="command_timeout")
    assert nobody.run("bash -c 'kill -9 -1'").result["exit_code"] == 137
    assert other.output("kill -0 $(</tmp/app-pid) && cat /tmp/app-file; kill %1; rm /tmp/app-*").startswith("mine")
    other.close()


def test_a_name_may_be_used_again_by_another_user(box, app):
    for user in ("nobody", app, None, "nobody"):
        assert box.post("/create_session", session="again", remote_user=user).ok
        reply = box.post("/run_in_session", session="again", command="id -un")
        assert reply.result["output"] == (user or "root")
        assert box.post("/close_session", session="again").ok


def test_a_container_of_another_user(api, stack):
    if stack.runtime == "local":
        pytest.skip("a local sandbox has one user")
    own = api.start(docker_args=["--user", "nobody", "--workdir", "/tmp/w"])
    session = own.open()
    assert session.output("id -un; pwd") == "nobody\n/tmp/w"
    assert own.execute(["id", "-un"]).result["stdout"] == "nobody\n"
    assert own.write("/tmp/f", "x").ok and own.read("/tmp/f").result["content"] == "x"
    assert own.upload(b"\0" * 3_000_000, "/tmp/g").ok
    assert session.output("stat -c %U /tmp/f /tmp/g") == "nobody\nnobody"
    assert own.open(remote_user="nobody").output("id -un") == "nobody"
    own.post("/create_session", session="s", remote_user="root").failed(4000, "remote_user", "--user")
    session.run("sleep 98761", timeout=0.3).failed(6000, kind="command_timeout")
    assert session.output("echo ok") == "ok"
    own.stop()
    unknown = api.post("/start", image="python:3.11", docker_args=["--user", "nope"], memory="256m", cpus=0.2)
    unknown.failed(4000, "user", "nope")
