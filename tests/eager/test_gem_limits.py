"""What a start of a GEM environment asks for: the service's defaults, and what EnvHub's entry says of its own."""

import json
import threading

import pytest
from werkzeug.serving import make_server

from app.config import load
from app.envhub import create_envhub

PREFIX = "/apis/v1/envs/gem"


@pytest.fixture
def make(make_api, tmp_path):
    """A function that registers an extra_spec, makes the environment and returns (the answer, what was started)."""
    hub = create_envhub(load(environ={"ROCK_ENVHUB_DB_URL": str(tmp_path / "envs.db")}))
    listening = make_server("127.0.0.1", 0, hub, threaded=True)
    serving = threading.Thread(target=listening.serve_forever, args=(0.02,))
    serving.start()
    api = make_api(ROCK_ENVHUB_BASE_URL=f"http://127.0.0.1:{listening.port}", ROCK_GEM__LIMIT_CPUS="0.5")
    api.node.join()

    def run(extra_spec):
        entry = {"env_name": "e", "image": "my/gem:1", "extra_spec": extra_spec}
        assert hub.test_client().post("/env/register", data=json.dumps(entry)).status_code == 200
        answer = api.client.post(f"{PREFIX}/make", data=json.dumps({"env_id": "e"})).get_json()
        records = [api.redis.hgetall(key) for key in api.redis.scan_iter(f"{api.prefix}sandbox:*")]
        return answer, [
            {"cpus": float(one["cpus"]), "lease": float(one["lease"]), **json.loads(one["spec"])} for one in records
        ]

    yield run
    listening.shutdown()
    serving.join()
    listening.server_close()


@pytest.mark.parametrize(
    ("extra_spec", "asked"),
    [
        (None, {"cpus": 0.05, "limit_cpus": 0.5, "memory": str(512 << 20), "disk": "50G"}),
        ({"cpus": 0.02}, {"cpus": 0.02, "limit_cpus": 0.5}),
        ({"cpus": 2}, {"cpus": 2.0, "limit_cpus": 2.0}),
        ({"cpus": 0.02, "limit_cpus": 0.1}, {"cpus": 0.02, "limit_cpus": 0.1}),
        ({"memory": "1g", "disk": "5g"}, {"memory": "1g", "disk": "5g"}),
        ({"auto_clear_seconds": 90}, {"lease": 90.0}),
        ({"anything": {"of": "yours"}}, {"cpus": 0.05, "lease": 360 * 60.0}),
    ],
)
def test_an_entry_says_its_limits_as_a_start_does(make, extra_spec, asked):
    _, (started,) = make(extra_spec)
    assert {name: started[name] for name in asked} == asked


@pytest.mark.parametrize(
    "extra_spec",
    [{"limit_cpus": 0}, {"limit_cpus": "two"}, {"cpus": -1}, {"memory": "8x"}, {"disk": "5Q"}, {"pull": "now"}, {"auto_clear_seconds": 0},
     {"docker_args": "--network"}],
)  # fmt: skip
def test_limits_that_are_none_are_named_and_start_nothing(make, extra_spec):
    answer, started = make(extra_spec)
    (name,) = extra_spec
    assert answer["kind"] == "bad_request" and f"'e': extra_spec.{name}" in answer["error"] and not started
