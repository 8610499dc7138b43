"""Commits as the API sees them: begun once, asked after, told how they ended."""

import time

from app.records import NodeRecord
from rock.errors import ImageAccess
from tests.eager.fake_node import GB


def commit(api, sandbox_id, tag="reg.example.com/a/b:1", **fields):
    return api.post("/commit", sandbox_id=sandbox_id, image_tag=tag, username="u", password="hunter2secret", **fields)


def on_docker(api, **fields) -> str:
    """Start a sandbox whose record says that it is a container."""
    sandbox_id = api.start(**fields)
    api.node.stores.sandboxes.set_container(sandbox_id, runtime="docker")
    return sandbox_id


def test_a_commit_runs_at_once_and_is_polled(api):
    sandbox_id = on_docker(api)
    assert "never committed" in api.get(f"/commit/{sandbox_id}")["error"]
    for answer in (commit(api, sandbox_id, request_id="R"), commit(api, sandbox_id, request_id="R", wait=0),
                   api.get(f"/commit/{sandbox_id}")):  # fmt: skip
        status = answer["result"]
        assert (status["phase"], status["image_tag"], status["sandbox_id"]) == (
            "RUNNING", "reg.example.com/a/b:1", sandbox_id,
        )  # fmt: skip
        assert status["started_at"] and status["completed_at"] is None and status["exit_code"] is None
    again = commit(api, sandbox_id, "other:1")
    assert (again["result"]["code"], again["result"]["kind"]) == (4000, "already_exists")
    assert len(api.node.held) == 1
    api.node.finish_commit()
    for answer in (api.get(f"/commit/{sandbox_id}"), api.get("/results/R"), commit(api, sandbox_id, request_id="R")):
        assert (answer["result"]["phase"], answer["result"]["exit_code"]) == ("SUCCEEDED", 0)
        assert answer["result"]["completed_at"] >= answer["result"]["started_at"]


def test_a_commit_can_be_waited_for(api):
    sandbox_id = on_docker(api)
    assert commit(api, sandbox_id, wait=0.2)["result"]["phase"] == "RUNNING"
    api.node.finish_commit(ImageAccess("the registry says no"))
    status = api.get(f"/commit/{sandbox_id}")["result"]
    assert (status["phase"], status["failed_stage"], status["error_code"]) == ("FAILED", "push", "LOGIN_FAILED")
    assert (status["exit_code"], status["error_message"]) == (1, "the registry says no")
    assert commit(api, sandbox_id)["result"]["phase"] == "RUNNING", "the next may begin"


def test_L16_bad_names_and_wrong_states_are_refused(api):
    sandbox_id = on_docker(api)
    for tag in ("UPPER/x:y", "a b", "x:y:z", "x@sha256:" + "0" * 64, "-x", "x:" + "t" * 200):
        failed = commit(api, sandbox_id, tag)
        assert failed["result"]["code"] == 4000 and "image_tag" in failed["error"], failed
    assert commit(api, "nope")["result"]["kind"] == "not_found"
    local = commit(api, api.start())
    assert local["result"]["code"] == 4000 and "no images" in local["error"]
    api.post("/stop", sandbox_id=sandbox_id)
    assert commit(api, sandbox_id)["status"] == "Success", "a stopped one has its files"
    api.node.finish_commit()
    api.post("/delete", sandbox_id=sandbox_id)
    assert commit(api, sandbox_id)["result"]["kind"] == "not_running"


def test_a_commit_whose_node_dies_has_failed(api):
    sandbox_id = on_docker(api)
    commit(api, sandbox_id, request_id="R")
    api.node.vanish()
    answer = api.get("/results/R", wait=20)
    assert answer["result"]["kind"] == "node_lost"
    status = api.get(f"/commit/{sandbox_id}")["result"]
    assert (status["phase"], status["error_code"]) == ("FAILED", "WORKER_UNREACHABLE")
    assert "node n1 was lost" in status["error_message"]


def test_the_password_is_nowhere(api, caplog):
    caplog.set_level("DEBUG")
    sandbox_id = on_docker(api)
    commit(api, sandbox_id)
    api.node.finish_commit()
    kept = "".join(str(api.redis.hgetall(key)) for key in api.redis.scan_iter(f"{api.prefix}[cs]*:*"))
    for text in (str(api.get(f"/commit/{sandbox_id}")), kept, caplog.text):
        assert "hunter2secret" not in text


def test_N09_a_committed_image_is_started_where_it_is(api):
    sandbox_id = on_docker(api)
    commit(api, sandbox_id, "local/x:1")
    api.node.finish_commit()
    api.node.stores.nodes.register("n2", "t", NodeRecord("n2", 64.0, 256 * GB), time.time())
    for name in ("local/x:1", "docker.io/local/x:1"):
        made = api.start(image=name, cpus=0.5)
        assert api.node.stores.sandboxes.get(made).node == "n1", "though n2 has far more room"
    api.node.vanish()
    failed = api.post("/start", image="local/x:1", memory="1g", cpus=1)
    assert failed["result"]["code"] == 4000
    assert "local/x:1" in failed["error"] and "n1" in failed["error"] and "not pushed" in failed["error"]


def test_another_owners_commit_neither_passes_for_an_image_nor_keeps_anybody_from_it(make_api):
    api = make_api(ROCK_API_KEYS="alpha-key=alice,beta-key=bob")
    api.node.join()
    alice, bob = ({"X-API-Key": f"{name}-key"} for name in ("alpha", "beta"))
    sandbox_id = on_docker(api, headers=alice)
    body = {"sandbox_id": sandbox_id, "image_tag": "ubuntu:24.04"}
    assert api.post("/commit", body, headers=bob)["result"]["kind"] == "not_found"
    assert api.post("/commit", body, headers=alice)["result"]["phase"] == "RUNNING"
    assert api.get(f"/commit/{sandbox_id}", headers=bob)["result"]["kind"] == "not_found"
    api.node.finish_commit()
    api.node.stores.nodes.register("n2", "t", NodeRecord("n2", 64.0, 256 * GB), time.time())
    for name in ("ubuntu:24.04", "docker.io/library/ubuntu:24.04"):
        mine, others = (api.start(headers=caller, image=name, cpus=0.5) for caller in (alice, bob))
        nodes = [api.node.stores.sandboxes.get(made).node for made in (mine, others)]
        assert nodes == ["n1", "n2"], "hers is bound to where her commit is, his goes where there is most room"
    assert api.post("/remove_image", {"image": "ubuntu:24.04"}, headers=bob)["status"] == "Success"
    assert api.node.stores.images.only_node("ubuntu:24.04", "alice") == "n1", "his removal does not touch her commit"


def test_nobody_asks_for_an_image_by_the_services_own_name_of_it(api):
    sandbox_id = on_docker(api)
    for name in (
        "rock-commit-0123456789ab:f00d",
        "docker.io/library/rock-fork-0123456789ab:1",
        "localhost/rock-commit-a:b",
    ):
        for failed in (api.post("/start", image=name), commit(api, sandbox_id, name),
                       api.post("/remove_image", image=name), api.post("/warmup/tasks", image=name)):  # fmt: skip
            assert failed["result"]["code"] == 4000 and "the service's own" in failed["error"], failed
    assert api.start(image="reg.example.com/rock-commit-a:b"), "somebody else's registry may have anything"
