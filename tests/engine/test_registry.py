"""Commits and pulls against a real engine and a real registry that wants a password."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts import registry
from scripts.images import ALPINE, PYTHON
from tests.service_stack import free_port
from tests.wire import Api, until

LOGIN = {"registry_username": registry.USER, "registry_password": registry.PASSWORD}
CREDENTIALS = {"username": registry.USER, "password": registry.PASSWORD}


@pytest.fixture(scope="module")
def api(engine_server):
    return Api(engine_server.url)


@pytest.fixture(scope="module")
def private(host, engine):
    """An image that only the registry has, and only with a password."""
    name = f"{host}/private/tool"
    engine.images.get(ALPINE).tag(name, "1")
    pushed = engine.api.push(name, "1", auth_config=CREDENTIALS)
    assert "errorDetail" not in pushed, pushed
    engine.images.remove(f"{name}:1")
    return f"{name}:1"


@pytest.fixture
def absent(engine):
    """A function that removes an image from the engine, now and after the test."""
    names = []

    def remove(name):
        names.append(name)
        with contextlib.suppress(Exception):
            engine.images.remove(name, force=True)
        return name

    yield remove
    for name in names:
        with contextlib.suppress(Exception):
            engine.images.remove(name, force=True)


def committed(box, tag, **fields):
    """Commit and wait for the end; return the status."""
    answer = box.post("/commit", image_tag=tag, **fields)
    assert answer.ok, answer.body  # one that is refused may have ended already
    return until(lambda: (now := box.api.get(f"/commit/{box.id}").result)["phase"] != "RUNNING" and now, 60, "the end")


def start(api, image, **fields):
    return api.post("/start", image=image, memory="256m", cpus=0.2, **fields)


def test_L16_a_commit_has_the_files_and_the_images_own_settings(api, engine, absent):
    tag = absent("rock-test/committed:1")
    box = api.start(image=PYTHON, env={"A": "q'\"q", "TOKEN": "hunter2secret"})
    shell = box.open()
    shell.output("echo data > /file; mkdir -p /deep/er; ln -s /file /deep/er/link")
    with ThreadPoolExecutor(1) as caller:
        running = caller.submit(lambda: shell.run("for i in {1..30}; do sleep 0.05; echo $i; done | tail -1"))
        status = committed(box, tag)
        assert running.result(30).result["output"] == "30", "a command stands still, and goes on"
    assert (status["phase"], status["exit_code"], status["error_message"]) == ("SUCCEEDED", 0, None)
    made, base = engine.images.get(tag).attrs, engine.images.get(PYTHON).attrs
    for name in ("Env", "Cmd", "Entrypoint", "Labels", "User", "WorkingDir", "Healthcheck", "Volumes"):
        assert made["Config"].get(name) == base["Config"].get(name), name
    assert made["RootFS"]["Layers"][:-1] == base["RootFS"]["Layers"]
    told = str(engine.images.get(tag).history()) + str(made)
    assert "hunter2secret" not in told and "rock." not in told and "KEEPER" not in told
    assert not [one for one in engine.images.list(filters={"dangling": True}) if box.id in str(one.attrs)]
    box.stop()
    other = api.start(image=tag)
    assert other.read("/deep/er/link").result["content"] == "data\n"
    used = api.post("/remove_image", image=tag).result
    assert used["removed"] == [] and "running sandboxes" in used["failed"][0]["error"], used
    other.stop()
    assert len(api.post("/remove_image", image=tag).result["removed"]) == 1


def test_a_stopped_sandbox_can_be_committed(api, absent):
    tag = absent("rock-test/committed:2")
    box = api.start(auto_delete_seconds=300)
    box.write("/file", "data")
    box.stop()
    assert committed(box, tag)["phase"] == "SUCCEEDED"
    assert box.post("/delete").ok
    other = api.start(image=tag, pull="never")
    assert other.read("/file").result["content"] == "data"
    other.stop()


def test_an_image_that_is_no_commit_cannot_be_overwritten(api, engine):
    before = engine.images.get(ALPINE).id
    box = api.start(image=ALPINE)
    status = committed(box, ALPINE)
    assert (status["phase"], status["failed_stage"], status["error_code"]) == ("FAILED", "commit", "COMMIT_CONFLICT")
    assert ALPINE in status["error_message"] and engine.images.get(ALPINE).id == before
    box.stop()


def test_an_image_is_had_by_its_name_and_not_by_its_id(api, engine):
    """An id is anybody's to guess, and names nobody whose image it is."""
    whole = engine.images.get(ALPINE).id
    for part in (whole[7:], whole[7:19]):
        start(api, part, pull="never").failed(5000, part, kind="image_not_found")
        assert api.post("/remove_image", image=part).result["removed"] == []
    for bad in (whole, f"../containers/{'a' * 12}"):
        start(api, bad, pull="never").failed(4000, "image")
        api.post("/remove_image", image=bad).failed(4000, "image")
    assert engine.images.get(ALPINE).id == whole


def test_a_commit_is_pushed_and_started_from_the_registry(api, host, absent, engine, engine_server):
    tag = absent(f"{host}/team/app:1")
    box = api.start(image=ALPINE)
    box.write("/file", "data")
    status = committed(box, tag, **CREDENTIALS)
    assert (status["phase"], status["error_message"]) == ("SUCCEEDED", None)
    box.stop()
    engine.images.remove(tag, force=True)
    other = api.start(image=tag, **LOGIN)
    assert other.read("/file").result["content"] == "data"
    other.stop()
    assert registry.PASSWORD not in (engine_server.data_dir / "logs" / "service.log").read_text(errors="replace")


@pytest.mark.parametrize(("user", "password"), [(registry.USER, "wrong-pass-word"), ("nobody", registry.PASSWORD)])
def test_L16_a_push_that_is_refused_says_so_and_tells_no_password(api, host, engine, engine_server, user, password):
    tag = f"{host}/team/refused:1"
    box = api.start(image=ALPINE)
    status = committed(box, tag, username=user, password=password)
    assert (status["phase"], status["failed_stage"], status["error_code"]) == ("FAILED", "push", "LOGIN_FAILED")
    assert status["exit_code"] == 1 and tag in status["error_message"] and password not in str(status)
    assert not [one for one in engine.images.list() if tag in one.tags], "half a success would be started by mistake"
    box.stop()
    assert password not in (engine_server.data_dir / "logs" / "service.log").read_text(errors="replace")


def test_a_push_to_nowhere_fails(api, absent):
    tag = absent(f"127.0.0.1:{free_port()}/team/app:1")
    box = api.start(image=ALPINE)
    status = committed(box, tag, **CREDENTIALS)
    assert (status["phase"], status["failed_stage"], status["error_code"]) == ("FAILED", "push", "PUSH_FAILED")
    box.stop()


def test_L01_X06_a_private_image_needs_its_login(api, host, private, absent, engine, engine_server):
    absent(private)
    for login in ({}, {**LOGIN, "registry_password": "wrong-pass-word"}):
        reply = start(api, private, sandbox_id="locked-out", **login)
        assert "registry_password" in reply.failed(5000, private, kind="image_access")["failure_reason"]
        phase = api.get("/get_status", sandbox_id="locked-out").result["status"]["image_pull"]
        assert phase["status"] == "failed" and "registry" in phase["message"]
        assert not [one for one in engine.containers.list(all=True, ignore_removed=True) if "locked-out" in one.name]
    box = api.start(image=private, **LOGIN)
    status = api.get("/get_status", sandbox_id=box.id)
    assert registry.PASSWORD not in str(status.body)
    box.stop()
    start(api, private, pull="always").failed(5000, private, kind="image_access")
    kept = Path("~/.docker/config.json").expanduser()
    assert not kept.exists() or host not in kept.read_text(), "the login is for that one pull"
    for word in (registry.PASSWORD, "wrong-pass-word"):
        assert word not in (engine_server.data_dir / "logs" / "service.log").read_text(errors="replace")


def test_L01_missing_bad_and_unreachable_images_are_told_apart(api, host, private):
    missing = private.replace(":1", ":none")
    start(api, missing, **LOGIN).failed(5000, missing, kind="image_not_found")
    nowhere = f"127.0.0.1:{free_port()}/x/y:1"
    result = start(api, nowhere).failed(5000, nowhere, kind="pull_failed")
    assert result["retryable"]
    for bad in ("UPPER:1", "a//b", "x:y:z", "-x:1"):
        start(api, bad).failed(4000, "image")


def test_pull_policies(api, private, absent, engine):
    absent(private)
    start(api, private, pull="never", **LOGIN).failed(5000, "pull=never", kind="image_not_found")
    box = api.start(image=private, pull="missing", **LOGIN)
    box.stop()
    box = api.start(image=private, pull="never")
    box.stop()
    start(api, private, pull="always").failed(5000, private, kind="image_access")
    box = api.start(image=private, pull="always", **LOGIN)
    box.stop()


def test_one_pull_serves_all_who_wait(api, private, absent):
    absent(private)
    with ThreadPoolExecutor(6) as callers:
        boxes = list(callers.map(lambda _: api.start(image=private, cpus=0.05, **LOGIN), range(6)))
    for box in boxes:
        box.stop()


def test_warmup_from_the_cache_folder_and_removal(make_stack, engine_url, engine, absent, host, tmp_path):
    """A node fetches what its configuration names when it starts; a saved image is loaded, and no registry asked."""
    at_start, later = absent("rock-test/cached:1"), absent("rock-test/cached:2")
    engine.images.get(ALPINE).tag("rock-test/cached", "1")
    for name in (at_start, later):
        with (tmp_path / f"{name.replace('/', '_').replace(':', '_')}.tar").open("wb") as file:
            for chunk in engine.images.get(at_start).save(named=True):
                file.write(chunk)
    engine.images.remove(at_start, force=True)
    variables = {"DOCKER_HOST": engine_url, "DOCKER_IMAGE_CACHE_DIR": str(tmp_path), "ROCK_WARMUP__IMAGES": at_start}
    stack = make_stack(runtime="docker", variables=variables).start()
    api = Api(stack.url)
    until(lambda: [one for one in engine.images.list() if at_start in one.tags], 60, "the warmup")
    private = f"{host}/private/none:1"
    task = api.post("/warmup/tasks", images=[later, private]).result
    done = until(lambda: (now := api.get(f"/warmup/tasks/{task['task_id']}").result)["state"] == "failed" and now)
    assert [pull["state"] for pull in done["pulls"]] == ["success", "failed"]
    assert private in done["pulls"][1]["message"]
    box = api.start(image=later, pull="never")
    box.stop()
    for name in (at_start, later):
        assert api.post("/remove_image", image=name).result["removed"] == [stack.node_id]
        assert api.post("/remove_image", image=name, node=stack.node_id).result == {
            "removed": [],
            "failed": [],
            "lost": [],
        }
    assert not [one for one in engine.images.list() if {at_start, later} & set(one.tags)]
    stack.stop()
