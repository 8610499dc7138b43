"""What a SWE environment makes of the service's answers: the model's faults are observations, the service's are errors."""

import asyncio

import pytest

from rock import errors
from rock.rollout import RockSandbox, SweEnvironment, SweTask
from rock.rollout.breaker import Breaker
from rock.rollout.swe_environment import OBSERVATION_CHARS
from tests.unit.sdk.fake_service import FakeService, observation, started, success

TASK = SweTask(
    instance_id="o__r-1",
    base_commit="abc",
    tests=("tests/a b.py::test_x",),
    test_patch="--- a/tests/a b.py\n+++ b/tests/a b.py\n",
)


def with_environment(test):
    """Run an async test with a service and a started environment."""

    def run(monkeypatch):
        monkeypatch.delenv("STACX_KEEP_IMAGES", raising=False)

        async def body():
            async with FakeService() as fake:
                fake.on("/start", started())
                fake.on("/stop", success("stopped"))
                fake.on("/create_session", success({"output": "", "session_type": "bash"}))
                fake.on("/run_in_session", observation())
                fake.on("/write_file", success({"success": True}))
                fake.on("/remove_image", success({"removed": ["n"], "failed": []}))
                environment = SweEnvironment(TASK, RockSandbox(fake.url, breaker=Breaker()))
                await test(fake, environment)

        asyncio.run(body())

    run.__name__ = test.__name__
    return run


@with_environment
async def test_start_and_end(fake, environment):
    async with environment:
        sent = fake.requests("/start")[0].body
        assert (sent["image"], sent["cpus"], sent["memory"]) == (TASK.image_name, 4, "16g")
        assert sent["docker_args"][0] == "-v" and sent["docker_args"][-2:] == ["--network", "none"]
        ran = [seen.body["command"] for seen in fake.requests("/run_in_session")]
        assert "conda activate testbed" in ran[0] and "cd /testbed" in ran[0]
        assert "git checkout" in ran[1] and ran[1].endswith("abc")
    assert [seen.path for seen in fake.seen][-2:] == ["/stop", "/remove_image"]
    assert fake.seen[-1].body["image"] == TASK.image_name


@with_environment
async def test_a_start_that_fails_takes_down_what_is_there(fake, environment):
    fake.on("/run_in_session", observation("conda.sh: No such file", 1))
    with pytest.raises(errors.CommandFailed, match="o__r-1.*conda.sh: No such file"):
        async with environment:
            pass
    assert [seen.path for seen in fake.seen][-2:] == ["/stop", "/remove_image"]


@with_environment
async def test_observations(fake, environment):
    async with environment:

        async def step(answer, tool="execute_bash", **arguments):
            fake.on("/run_in_session", answer)
            return await environment.step(tool, arguments or {"command": "x"})

        assert await step(observation("out", 3)) == "out\n[exit code 3]"
        assert await step(observation("", 0)) == "[exit code 0]"
        assert await step(observation("     1\tx"), "str_replace_editor", command="view", path="/x") == "     1\tx"
        late = errors.CommandTimeout("ended after 120 s", output="so far").to_envelope()
        assert await step(late) == "so far\nERROR: ended after 120 s"
        assert "no tool 'browse'" in await step(observation(), "browse", url="x")
        long = await step(observation("a" * OBSERVATION_CHARS + "z"))
        assert len(long) < OBSERVATION_CHARS + 100 and long.endswith("z\n[exit code 0]") and "left out" in long
        with pytest.raises(errors.SandboxGone):
            await step(errors.SandboxGone("gone").to_envelope())
    assert {seen.body["timeout"] for seen in fake.requests("/run_in_session")} == {120}


@with_environment
async def test_the_reward_comes_from_a_shell_of_its_own(fake, environment):
    async with environment:
        report = "=== short test summary info ===\nPASSED tests/a b.py::test_x\n"
        fake.on("/run_in_session", *[observation()] * 3, observation(report))
        assert await environment.reward(timeout=900) == 1.0
        last = fake.requests("/run_in_session")[-1].body
        assert (last["session"], last["timeout"]) == ("grader", 900)
        assert last["command"] == "python -m pytest -rA 'tests/a b.py'"
        assert fake.requests("/write_file")[0].body["content"] == TASK.test_patch
        fake.on("/run_in_session", *[observation()] * 3, errors.CommandTimeout("too long").to_envelope())
        assert await environment.reward() == 0.0
        fake.on("/run_in_session", *[observation()] * 2, observation("patch does not apply", 1))
        with pytest.raises(errors.CommandFailed, match="does not apply"):
            await environment.reward()
