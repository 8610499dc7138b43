"""The request for forks, as the API takes it; what a node makes of it is tested with the node."""

import pytest


def test_a_fork_is_a_call_of_its_sandbox(api):
    sandbox_id = api.start()
    path, body = f"/sandboxes/{sandbox_id}/fork", {"count": 2, "env": {"A": "b"}, "request_id": "R"}
    answer = api.post(path, **body)
    assert len(answer["result"]["sandboxes"]) == 2
    assert api.post(path, **body) == answer == api.get("/results/R") and len(api.node.ran) == 2
    changed = api.post(path, **{**body, "count": 3})
    assert (changed["result"]["kind"], len(api.node.ran)) == ("bad_request", 2)
    assert len(api.post(path)["result"]["sandboxes"]) == 1


def test_it_can_be_left_and_asked_for_later(api):
    path = f"/sandboxes/{api.start()}/fork"
    assert api.post(path, wait=0, request_id="R")["status"] == "Success"
    assert len(api.get("/results/R", wait=5)["result"]["sandboxes"]) == 1


@pytest.mark.parametrize(
    "wrong", [{"count": 0}, {"count": 65}, {"count": "many"}, {"env": {"A B": 1}}, {"docker_args": "x"}]
)
def test_what_is_asked_for_is_checked(api, wrong):
    refused = api.post(f"/sandboxes/{api.start()}/fork", **wrong)
    assert refused["result"]["kind"] == "bad_request" and next(iter(wrong)) in refused["error"]


def test_only_its_owner_forks_a_sandbox(make_api):
    api = make_api(ROCK_API_KEYS="a=ann,b=bob")
    api.node.join()
    sandbox_id = api.start(headers={"X-API-Key": "a"})
    path = f"/sandboxes/{sandbox_id}/fork"
    assert api.post(path, headers={"X-API-Key": "b"})["result"]["kind"] == "not_found"
    assert api.post("/sandboxes/nobody/fork", headers={"X-API-Key": "a"})["result"]["kind"] == "not_found"
    assert api.post(path, headers={"X-API-Key": "a"})["status"] == "Success"


def test_a_lost_node_cannot_fork(api):
    sandbox_id = api.start()
    api.node.vanish()
    assert api.post(f"/sandboxes/{sandbox_id}/fork")["result"]["kind"] == "node_lost"
