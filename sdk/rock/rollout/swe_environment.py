"""One SWE task in one sandbox: start, tool calls, tests, reward, end."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rock import errors
from rock.rollout.sandbox import COMMAND_SECONDS, RockSandbox, SessionResult
from rock.rollout.swe import REPOSITORY, entrypoint_mount, tool_command
from rock.rollout.swe_task import SweTask

OBSERVATION_CHARS = 30_000
"""What a model gets to see of one answer; of longer ones the beginning and the end."""
TEST_SECONDS = 1800.0

_ACTIVATE = "source /opt/miniconda3/etc/profile.d/conda.sh && conda activate testbed"
# Real images hold the repository's later commits, and with them the solution. What no branch or tag leads to any more,
# git shows only to those who know its hash.
_HIDE_LATER = """\
for remote in $(git remote); do git remote remove "$remote" || exit; done
git for-each-ref --no-merged=HEAD --format='delete %(refname)' | git update-ref --no-deref --stdin || exit
git reflog expire --expire=now --all && rm -f .git/FETCH_HEAD .git/ORIG_HEAD"""


class SweEnvironment:
    """A task's sandbox. Usable with `async with`, which starts it and takes it down.

    Params:
        task: what is to be solved.
        sandbox: the client to use; None: one with the defaults.
        cpus, memory: of the container.
        network: `none` keeps an agent from fetching the solution; None: the node's default.
        docker_args: further flags.
    """

    def __init__(
        self,
        task: SweTask,
        sandbox: RockSandbox | None = None,
        *,
        cpus: float = 4.0,
        memory: str = "16g",
        network: str | None = "none",
        docker_args: Sequence[str] = (),
    ) -> None:
        self.task = task
        self.sandbox = sandbox or RockSandbox()
        self._cpus, self._memory = cpus, memory
        self._docker_args = [*entrypoint_mount(), *(["--network", network] if network else []), *docker_args]

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the container and bring the repository to the task's base commit, later commits out of sight.

        Raises:
            RockError: the container did not start.
            CommandFailed: the image is not of the shape of SWE-bench's; the message says what failed.
        """
        await self.sandbox.start(self.task.image_name, self._cpus, self._memory, self._docker_args)
        await self._open("agent")
        await self._must(f"git checkout --quiet --force --detach {shlex.quote(self.task.base_commit)}", "agent")
        await self._must(f"( {_HIDE_LATER} )", "agent")

    async def step(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a model's tool call and return what the model gets to see.

        The model's own faults (an unknown tool, a failing or endless command) are observations, not errors.

        Params:
            tool: name of one of SWE_TOOL_CONFIGS.
            arguments: as the model gave them.
        Raises:
            ServiceFault: the sandbox or the service failed; the model is not to blame.
        """
        try:
            seen = await self.sandbox.execute_in_session(tool_command(tool, arguments), "agent", COMMAND_SECONDS)
        except errors.BadRequest as error:
            return f"ERROR: {error.message}"
        except errors.CommandFault as error:
            return _cut(f"{error.details.get('output', '')}\nERROR: {error.message}".lstrip("\n"))
        notes = [seen.failure_reason] if seen.failure_reason else []
        if tool == "execute_bash":
            notes.append(f"[exit code {seen.exit_code}]")
        return _cut("\n".join(part for part in (seen.output, *notes) if part))

    async def apply_patch(self, patch: str) -> None:
        """Apply a diff to the repository.

        Raises:
            CommandFailed: it does not fit.
        """
        await self._open("grader")
        await self._apply(patch, "grader")

    async def patch(self) -> str:
        """Return the agent's changes against the base commit as a diff, new files included.

        Raises:
            CommandFailed: git could not say.
        """
        await self._open("grader")
        base = shlex.quote(self.task.base_commit)
        # An index of its own: the agent's stays as it is.
        script = f'( export GIT_INDEX_FILE=$(mktemp -u) && git read-tree {base} && git add -A && git diff --cached {base}; s=$?; rm -f "$GIT_INDEX_FILE"; exit $s )'
        seen = await self._must(script, "grader")
        return f"{seen.output}\n" if seen.output else ""

    async def reward(self, timeout: float = TEST_SECONDS) -> float:
        """Put the task's tests in place, run them in a shell of their own, and return 1.0 if all that must pass do.

        Params:
            timeout: seconds for the tests; a run that takes longer earns 0.0.
        Raises:
            CommandFailed: the test patch does not fit, which is the task's fault.
            ServiceFault: the sandbox or the service failed.
        """
        await self._open("grader")
        await self._restore(self.task.patched_files())
        if self.task.test_patch:
            await self._apply(self.task.test_patch, "grader")
        files = " ".join(shlex.quote(file) for file in self.task.test_files())
        try:
            seen = await self.sandbox.execute_in_session(f"{self.task.test_command} {files}", "grader", timeout)
        except errors.CommandFault:
            return 0.0  # Endless, or ended by what the agent left behind.
        return self.task.grade(seen.output)

    async def close(self) -> None:
        """Stop the container and remove its image, unless `STACX_KEEP_IMAGES` keeps it.

        Raises:
            RockError: the sandbox could not be stopped; the image was tried all the same.
        """
        try:
            await self.sandbox.stop()
        finally:
            await self.sandbox.remove_image()

    async def _open(self, session: str) -> None:
        """Open a session in the repository under the task's environment, unless it is open."""
        await self._must(f'[ "$CONDA_DEFAULT_ENV" = testbed ] || {{ {_ACTIVATE}; }} && cd {REPOSITORY}', session)

    async def _restore(self, files: list[str]) -> None:
        """Bring files back to the base commit, whatever the agent made of them; those it does not have are removed."""
        base = shlex.quote(self.task.base_commit)
        for file in map(shlex.quote, files):
            old = f"git cat-file -e {base}:{file} 2> /dev/null"
            await self._must(f"rm -rf -- {file} && if {old}; then git checkout {base} -- {file}; fi", "grader")

    async def _apply(self, patch: str, session: str) -> None:
        """Apply a diff from a file outside the repository, under a name that no agent can have prepared."""
        path = f"/tmp/rock-{uuid.uuid4().hex}.patch"
        await self.sandbox.write_file(path, patch)
        await self._must(
            f"git apply --whitespace=nowarn {shlex.quote(path)}; s=$?; rm -f {shlex.quote(path)}; (exit $s)", session
        )

    async def _must(self, command: str, session: str) -> SessionResult:
        """Run a command that has to succeed. Raises CommandFailed with what it said."""
        seen = await self.sandbox.execute_in_session(command, session, COMMAND_SECONDS)
        if seen.exit_code != 0:
            said = seen.output.strip() or seen.failure_reason or "no output"
            raise errors.CommandFailed(
                f"{self.task.instance_id}: `{command.splitlines()[0]}` exited with {seen.exit_code}: {said[-2000:]}",
                exit_code=seen.exit_code, output=seen.output,
            )  # fmt: skip
        return seen


def _cut(text: str) -> str:
    """Return a text of a length that a model can take: of a long one its beginning and its end."""
    if len(text) <= OBSERVATION_CHARS:
        return text
    half = OBSERVATION_CHARS // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters left out) …\n{text[-half:]}"
