"""The engine's HTTP API, Docker's and Podman's alike: behind Docker's client library, and the border at which the
engine's faults become ours. It knows containers and images by name; what a sandbox is, it does not."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode

import docker.errors
import requests.exceptions

from rock.errors import Internal, SandboxGone, Unavailable
from workers.deployments import client, wire
from workers.deployments.engine_facts import MEASURE_SECONDS
from workers.deployments.faults import Doing, translate

_LIBPOD = "4.0.0"
"""Version of Podman's own API."""
COMMIT_SECONDS = 3600.0
"""For an engine to copy a container's files into an image."""


class _Absent(Internal):
    """What was named is not there (any more), and the caller of the engine is content with that."""


class Engine:
    """One engine. Cheap calls share a pool of connections; streams have a connection of their own.

    Params:
        endpoint: where it listens.
    Errors of every method: what the engine's refusal means (see `faults`), Unavailable when it does not answer.
    """

    def __init__(self, endpoint: wire.Endpoint) -> None:
        self.endpoint = endpoint
        if not endpoint.url.startswith("ssh://"):
            endpoint.connect().close()  # says best what is wrong, and the client library would leave a socket open
        with self._border(Doing("reach the container engine")):
            self._api = client.make(endpoint)
        with self._border(Doing("ask the container engine for its version")):
            answer = self._api.version()
        names = " ".join(part.get("Name", "") for part in answer.get("Components") or ())
        self.is_podman = "Podman" in names
        # Such as `Docker 20.10.24` or `Podman 4.3.1`; and its processors, in the images' words (`amd64`).
        self.version = f"{'Podman' if self.is_podman else 'Docker'} {answer['Version']}"
        self.architecture = str(answer["Arch"])

    def info(self) -> dict[str, Any]:
        """Return what the engine says of itself: `DockerRootDir`, `DefaultRuntime` and more, in its own words."""
        with self._border(Doing("ask the container engine about itself")):
            return dict(self._api.info())

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return what the engine knows of an image it has, None if it has none of that name."""
        try:
            with self._border(Doing(f"look for image {reference}", reference), absent=(404,)):
                return dict(self._api.inspect_image(reference))
        except _Absent:
            return None

    def images(self) -> list[str]:
        """Return the names of all images, as `repository:tag` and as short as Docker has them: Podman spells its registry out."""
        with self._border(Doing("list images")):
            found = self._api.images()
        names = [name for image in found for name in image.get("RepoTags") or () if name != "<none>:<none>"]
        return [name.removeprefix("docker.io/library/").removeprefix("docker.io/") for name in names]

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Give an image another name."""
        with self._border(Doing(f"tag image {image_id}", repository)):
            self._api.tag(image_id, repository, tag)

    def pull(
        self, repository: str, tag: str, login: Mapping[str, str] | None, tick: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """Pull an image; yield the engine's progress objects. Left early, the engine stops pulling.

        Params:
            tag: a tag or a digest.
            login: `username` and `password`, or None for an anonymous pull: the node's own logins are not lent to callers.
            tick: asked several times a second; False ends the pull.
        """
        doing = Doing(f"pull image {repository}:{tag}", f"{repository}:{tag}", pulling=True)
        path = self._path("/images/create", fromImage=repository, tag=tag)
        answer = wire.request(self.endpoint, "POST", path, headers=_login(login))
        yield from self._progress(answer, doing, tick)

    def load(self, file: Path, tick: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Load a saved image from a tar file; yield the engine's progress objects.

        Params:
            tick: asked several times a second; False leaves it.
        """
        doing = Doing(f"load image file {file.name}", file.name, pulling=True)
        with file.open("rb") as opened:
            answer = self._load(opened)
        yield from self._progress(answer, doing, tick)

    def load_bytes(self, archive: bytes, doing: Doing) -> None:
        """Load a saved image from memory."""
        for _ in self._progress(self._load(io.BytesIO(archive)), doing, lambda: True):
            continue

    def push(
        self, repository: str, tag: str, login: Mapping[str, str], tick: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """Push an image to the registry in its name; otherwise as `pull`."""
        doing = Doing(f"push image {repository}:{tag}", f"{repository}:{tag}", pushing=True)
        path = self._path(f"/images/{quote(repository)}/push", tag=tag)
        yield from self._progress(wire.request(self.endpoint, "POST", path, headers=_login(login)), doing, tick)

    def commit(self, container: str, settings: Mapping[str, Any], lines: Sequence[str], doing: Doing) -> str:
        """Make an image without a name of a container, which stands still meanwhile; return its id.

        Params:
            settings: of the image, instead of the container's.
            lines: the same as lines of a Dockerfile, for Podman: it does not read the settings.
        """
        # Copying gigabytes takes longer than any other answer.
        patient = replace(self.endpoint, timeout=COMMIT_SECONDS)
        path, body = self._path("/commit", container=container, pause="1"), json.dumps(dict(settings)).encode()
        if self.is_podman:
            path += f"&{urlencode({'changes': lines}, doseq=True)}"
        answer = self._checked(wire.request(patient, "POST", path, body=body), doing)
        # Podman leaves the algorithm out here, and finds no image by an id without it once that is gone.
        return f"sha256:{str(json.loads(answer.text())['Id']).removeprefix('sha256:')}"

    def runs(self, image_id: str) -> int:
        """Return how many running containers an image has."""
        # Podman finds none by an id with its algorithm.
        filters = {"ancestor": image_id.removeprefix("sha256:"), "status": "running"}
        with self._border(Doing("look for containers of an image")):
            return len(self._api.containers(filters=filters))

    def remove_image(self, reference: str, *, force: bool = True) -> bool:
        """Remove an image's name, and the image with its last name, though stopped containers use it; False if there is none.

        Params:
            force: False: not if any container was made from it; then False, too.
        """
        # Podman's force removes the containers as well, running ones too.
        forced = force and not self.is_podman
        try:
            with self._border(Doing(f"remove image {reference}", reference), absent=(404,) if forced else (404, 409)):
                self._api.remove_image(reference, force=forced)
        except _Absent:
            return force and self.is_podman and self._untag(reference)
        return True

    def _untag(self, reference: str) -> bool:
        """Take an image's last name away, in Podman's own API; it goes with the last of its containers (podman.remove). False if there is none."""
        if not (self.image(reference) or {}).get("RepoTags"):
            return False
        answer = wire.request(self.endpoint, "POST", f"/v{_LIBPOD}/libpod/images/{quote(reference)}/untag")
        self._checked(answer, Doing(f"remove image {reference}", reference)).text()
        return True

    def create(self, name: str, body: dict[str, Any], doing: Doing) -> None:
        """Create a container from the API's own description."""
        with self._border(doing):
            self._api.create_container_from_config(body, name)

    def start(self, name: str, doing: Doing) -> None:
        """Start a container; one that runs stays as it is."""
        with self._border(doing):
            self._api.start(name)

    def kill(self, name: str) -> None:
        """End a container's processes at once; unknown and stopped ones are left alone."""
        try:
            with self._border(Doing(f"stop container {name}"), absent=(404, 409)):
                self._api.kill(name, signal="SIGKILL")
        except (_Absent, SandboxGone):  # the latter in Podman's words
            return

    def remove(self, name: str) -> None:
        """Kill and remove a container with its anonymous volumes; an unknown one is left alone."""
        try:
            with self._border(Doing(f"remove container {name}"), absent=(404, 409)):
                self._api.remove_container(name, v=True, force=True)
        except _Absent:
            return  # gone, or (409) somebody else's removal is in progress

    def inspect(self, name: str) -> dict[str, Any] | None:
        """Return what the engine knows of a container, None if there is none."""
        try:
            with self._border(Doing(f"look at container {name}"), absent=(404,)):
                return dict(self._api.inspect_container(name))
        except (_Absent, SandboxGone):  # the latter in Podman's words, of one that is just being removed
            return None

    def layer_size(self, name: str) -> int | None:
        """Return the bytes of a container's own layer, None if the engine does not tell. Errors: SandboxGone."""
        patient = replace(self.endpoint, timeout=MEASURE_SECONDS)
        path, doing = self._path(f"/containers/{quote(name)}/json", size="1"), Doing(f"measure the files of {name}")
        size = json.loads(self._checked(wire.request(patient, "GET", path), doing).text()).get("SizeRw")
        return None if size is None else int(size)

    def containers(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the summaries of all containers, running or not, that carry all these labels."""
        with self._border(Doing("list containers")):
            return list(self._api.containers(all=True, filters={"label": _labels(labels)}))

    def stats(self, name: str) -> dict[str, Any]:
        """Return one sample of a container's consumption. Errors: SandboxGone."""
        with self._border(Doing(f"measure container {name}")):
            return dict(self._api.stats(name, stream=False, one_shot=True))

    def attach(self, name: str, doing: Doing, *, stdin: bool) -> wire.Answer:
        """Return a hijacked connection to the main process's stdout, from now on, and to its stdin if that is wanted."""
        path = self._path(f"/containers/{quote(name)}/attach", stream="1", stdin=str(int(stdin)), stdout="1")
        return self._checked(wire.request(self.endpoint, "POST", path, upgrade=True), doing)

    def exec(
        self, name: str, argv: list[str], user: str, doing: Doing, env: Mapping[str, str] | None = None
    ) -> tuple[str, wire.Answer]:
        """Start a process in a container; return its id and a hijacked connection to it."""
        with self._border(doing):
            exec_id = str(self._api.exec_create(name, argv, stdin=True, user=user, environment=dict(env or {}))["Id"])
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        answer = wire.request(self.endpoint, "POST", self._path(f"/exec/{exec_id}/start"), body=body, upgrade=True)
        return exec_id, self._checked(answer, doing)

    def exec_state(self, exec_id: str) -> dict[str, Any]:
        """Return what the engine knows of a process started by `exec`."""
        with self._border(Doing("ask for a process's exit code")):
            return dict(self._api.exec_inspect(exec_id))

    def events(self, labels: Mapping[str, str], since: float, tick: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """Yield events of containers with these labels, until `tick` says no or the connection ends.

        Params:
            since: epoch seconds; what happened after it is told first.
        """
        # Docker's names and Podman's (which filters by its own, and reports `die` for `died`).
        names = ["die", "died", "oom", "destroy", "remove"]
        wanted = {"type": ["container"], "event": names, "label": _labels(labels)}
        path = self._path("/events", filters=json.dumps(wanted), since=f"{since:.9f}")
        answer = self._checked(wire.request(self.endpoint, "GET", path), Doing("watch containers"))
        yield from wire.json_lines(answer, tick)

    def close(self) -> None:
        """Release the pooled connections."""
        self._api.close()

    def _load(self, opened: IO[bytes]) -> wire.Answer:
        # quiet: while the file is being sent nobody reads, and a talkative engine would block.
        return wire.request(self.endpoint, "POST", self._path("/images/load", quiet="1"), file=opened)

    def _path(self, path: str, **query: str) -> str:
        return f"/v{self._api.api_version}{path}" + (f"?{urlencode(query)}" if query else "")

    def _checked(self, answer: wire.Answer, doing: Doing) -> wire.Answer:
        if answer.status < 400:
            return answer
        raise translate(answer.status, answer.text(), doing)

    def _progress(self, answer: wire.Answer, doing: Doing, tick: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        for line in wire.json_lines(self._checked(answer, doing), tick):
            if "error" in line:
                raise translate(0, str(line["error"]), doing)
            yield line

    @contextmanager
    def _border(self, doing: Doing, absent: tuple[int, ...] = ()) -> Iterator[None]:
        """Turn what the client library raises into our errors; the statuses in `absent` into `_Absent`."""
        try:
            yield
        except docker.errors.APIError as error:
            if error.status_code in absent:
                raise _Absent(str(error)) from error
            raise translate(error.status_code or 0, str(error.explanation or error), doing) from error
        except requests.exceptions.Timeout as error:
            raise Unavailable(f"cannot {doing.what}: the container engine did not answer in time") from error
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise Unavailable(
                f"cannot {doing.what}: the container engine at {self.endpoint.url} does not answer: {error}"
            ) from error


def _login(login: Mapping[str, str] | None) -> dict[str, str]:
    """Return a registry login in a header of one request, and nowhere else: no file, no argument, no log."""
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(login or {})).encode()).decode()}


def _labels(labels: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in labels.items()]
