"""Keys that are taken away, and what is never written down: on a service with keys of its own."""

import contextlib
import http.client
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
import yaml

from tests.wire import PREFIX, Api, send, until

ANN, BOB, OPS = (f"key-of-{name}-{uuid.uuid4().hex}" for name in ("ann", "bob", "ops"))


def write_keys(path, *kept: str) -> None:
    owners = {ANN: {"owner": "ann"}, BOB: {"owner": "bob"}, OPS: {"owner": "ops", "admin": True}}
    settings = yaml.safe_load((path.parent / "base.yml").read_text())
    path.write_text(yaml.safe_dump({**settings, "auth": {"keys": [{"key": key, **owners[key]} for key in kept]}}))


@pytest.fixture(scope="module")
def stack(make_stack, tmp_path_factory):
    """A service whose keys stand in a file, which logs all it ever would."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "base.yml").write_text("log: {level: DEBUG}\nnode: {heartbeat_seconds: 0.5}\n")
    write_keys(folder / "rock.yml", ANN, BOB, OPS)
    made = make_stack(variables={"ROCK_CONFIG": str(folder / "rock.yml")}).start()
    made.keys_file = folder / "rock.yml"
    yield made
    made.stop()


def api(stack, key: str) -> Api:
    return Api(stack.url, {"X-API-Key": key})


def test_X05_no_header_command_or_content_is_in_a_log(stack):
    """Nor in a line of DEBUG: what a caller sends is the caller's."""
    secrets = {name: f"{name}-{uuid.uuid4().hex}" for name in
               ("header", "command", "stdin", "env", "file", "upload", "password", "output", "metadata", "cookie", "query")}  # fmt: skip
    ann = Api(stack.url, {"X-API-Key": ANN, "X-Mine": secrets["header"], "Cookie": secrets["cookie"]})
    box = ann.start(
        env={"A": secrets["env"]},
        metadata={"m": secrets["metadata"]},
        registry_username="u",
        registry_password=secrets["password"],
    )
    shell = box.open(env={"B": secrets["env"]})
    assert shell.output(f": {secrets['command']}; echo {secrets['output']}") == secrets["output"]
    shell.run(f"false {secrets['command']}", check="raise").failed(6000)
    shell.run(f"sleep 98765 # {secrets['command']}", timeout=0.2).failed(6000)
    assert box.execute(["echo", secrets["command"]], env={"C": secrets["env"]}).ok
    folder = shell.output("pwd")
    assert box.write(f"{folder}/{secrets['file']}", secrets["file"]).ok and box.read(f"{folder}/{secrets['file']}").ok
    assert box.upload(secrets["upload"].encode(), f"{folder}/u", filename=secrets["upload"]).ok
    ann.post("/execute", sandbox_id=5, command=secrets["command"]).failed(4000)
    send(stack.url, "POST", f"{PREFIX}/execute", secrets["command"].encode(), X_API_Key=ANN)
    send(
        stack.url,
        "GET",
        f"{PREFIX}/sandboxes/{box.id}/proxy/port/9/x?{secrets['query']}",
        X_API_Key=ANN,
        X_Mine=secrets["header"],
    )
    box.stop()
    files = [path for path in (stack.data_dir / "logs").rglob("*") if path.is_file()]
    logged = "".join(path.read_text(errors="replace") for path in files)
    assert box.id in logged, "it does log"
    assert [name for name, secret in {**secrets, "key": ANN}.items() if secret in logged] == []


def test_X09_a_key_that_is_taken_away_opens_nothing_within_seconds(stack):
    """Neither on a connection that was open before; the others are not disturbed."""
    ann, bob = api(stack, ANN), api(stack, BOB)
    mine, parts = ann.start(), urlsplit(stack.url)
    shell = mine.open()
    old = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)

    def on_old_connection() -> int:
        try:
            old.request("GET", f"{PREFIX}/sandboxes", headers={"X-API-Key": BOB})
            answer = old.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0

    assert on_old_connection() == 200
    write_keys(stack.keys_file, ANN, OPS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: shell.run("sleep 1; echo done"))
        done = stack.rock("admin", "reload")
        assert done.returncode == 0 and "api" in done.stdout, done.stderr
        until(lambda: bob.get("/sandboxes").status == 401, 10, "the refusal")
        until(lambda: on_old_connection() in (0, 401), 10, "the end of the connection")
        assert waiting.result(30).result["output"] == "done"
    # A process that is being replaced takes connections until it has seen that it is to end.
    until(lambda: all(bob.get("/sandboxes").status == 401 for _ in range(20)), 10, "the refusal by every process")
    listing = stack.envhub_url, "POST", "/env/list", b"{}"
    until(lambda: send(*listing, X_API_Key=BOB).status == 401, 10, "the refusal by the EnvHub")
    assert ann.get("/get_status", sandbox_id=mine.id).result["state"] == "running"
    assert shell.output("echo on") == "on"
    mine.stop()
    old.close()


def test_a_configuration_that_cannot_be_used_is_not_taken(stack):
    before = stack.pids()
    good = stack.keys_file.read_text()
    try:
        stack.keys_file.write_text("auth: {keyz: []}\n")
        refused = stack.rock("admin", "reload")
        assert refused.returncode != 0 and "keyz" in refused.stderr and "did you mean 'keys'" in refused.stderr
    finally:
        stack.keys_file.write_text(good)
    assert api(stack, ANN).get("/sandboxes").ok and stack.pids() == before


def test_X06_a_registrys_login_is_forgotten_with_its_start(stack):
    """It is in no key of Redis once the start is answered; Redis' file is in a folder that is the service's user's alone."""
    password = f"password-{uuid.uuid4().hex}"
    box = api(stack, ANN).start(registry_username="u", registry_password=password)
    with contextlib.closing(redis.Redis.from_url(stack.redis_url)) as database:
        kept = {key: database.dump(key) for key in database.scan_iter()}
        texts = [database.hgetall(key) for key in kept if database.type(key) == b"hash"]
    assert box.id.encode() in b"".join(kept) and password.encode() not in repr(texts).encode()
    box.stop()
    assert (stack.data_dir / "redis").stat().st_mode & 0o077 == 0


def test_X15_redis_listens_for_this_machine_alone(stack):
    """Who can write to Redis can have commands run in sandboxes, so nobody else may: it is bound to loopback."""
    port = f"{stack.redis_port:04X}"
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    bound = {line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[1].endswith(f":{port}")}
    assert bound == {"0100007F"}
