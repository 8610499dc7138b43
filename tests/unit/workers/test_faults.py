"""The engines' own texts, collected from Docker 20.10 to 28, Podman 4, runc and crun, and what each must become."""

import pytest

from rock import errors
from workers.deployments.faults import (
    DiskFull,
    DiskFullForImage,
    Doing,
    NameTaken,
    NoDiskLimit,
    is_transient,
    not_started,
    translate,
)

START = Doing("start sandbox s1", "img:1")
PULL = Doing("pull image img:1", "img:1", pulling=True)


@pytest.mark.parametrize(
    ("status", "text", "kind", "says"),
    [
        (404, "No such image: img:1", errors.ImageNotFound, "img:1"),
        (404, "img:1: image not known", errors.ImageNotFound, "img:1"),
        (400, 'OCI runtime create failed: exec: "bash": executable file not found in $PATH: unknown', errors.StartFailed, "bash"),
        (404, "crun: executable file `bash` not found in $PATH: No such file or directory", errors.StartFailed, "bash"),
        (500, 'runc: runc create failed: exec: "bash": executable file not found in $PATH', errors.StartFailed, "no bash"),
        (500, "mkdir /var/lib/x: no space left on device", DiskFull, "disk full"),
        (500, "exec /bin/bash: exec format error", errors.StartFailed, "architecture"),
        (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", errors.BadRequest, "cpus"),
        (400, "Minimum memory limit allowed is 6MB", errors.BadRequest, "memory"),
        (400, "Unknown runtime specified kata", errors.BadRequest, "runtime"),
        (400, "unknown or invalid runtime name: kata", errors.BadRequest, "runtime"),
        (400, "invalid mount config for type \"bind\": bind source path does not exist: /x", errors.BadRequest, "--volume"),
        (500, "Bind for 127.0.0.1:80 failed: port is already allocated", errors.BadRequest, "--publish"),
        (404, "network lan not found", errors.BadRequest, "--network"),
        (500, "error setting rlimit type 6: operation not permitted", errors.BadRequest, "--ulimit"),
        (409, "Container 12ab is not running", errors.SandboxGone, "start sandbox s1"),
        (404, "No such container: rock-1-s1", errors.SandboxGone, ""),
        (500, "can only create exec sessions on running containers: container state improper", errors.SandboxGone, ""),
        (409, 'Conflict. The container name "/a" is already in use by container "b".', NameTaken, ""),
        (500, "creating container storage: the container name \"a\" is already in use by b", NameTaken, ""),
        (500, "--storage-opt is supported only for overlay over xfs with 'pquota' mount option", NoDiskLimit, ""),
        (500, "OCI runtime create failed: something new", errors.StartFailed, "something new"),
        (503, "daemon is shutting down", errors.Unavailable, "shutting down"),
        (500, "something new", errors.Internal, "something new"),
        (400, "invalid reference format: repository name must be lowercase", errors.BadRequest, "image"),
    ],
)  # fmt: skip
def test_a_refused_start(status, text, kind, says):
    error = translate(status, text, START)
    assert type(error) is kind
    assert says in error.message


@pytest.mark.parametrize(
    ("text", "kind", "again"),
    [
        ("manifest for img:1 not found: manifest unknown: manifest unknown", errors.ImageNotFound, False),
        (
            "pull access denied for img, repository does not exist or may require 'docker login'",
            errors.ImageAccess,
            False,
        ),
        ("unauthorized: authentication required", errors.ImageAccess, False),
        ("denied", errors.ImageAccess, False),
        ('Get "https://r/v2/": dial tcp: lookup r on 1.1.1.1:53: no such host', errors.PullFailed, True),
        ("net/http: TLS handshake timeout", errors.PullFailed, True),
        (
            'initializing source docker://127.0.0.1:1/x/y:1: pinging container registry 127.0.0.1:1: Get "https://127.0.0.1:1/v2/": '
            "dial tcp 127.0.0.1:1: connect: connection refused",  # Podman
            errors.PullFailed,
            True,
        ),
        ("unexpected EOF", errors.PullFailed, True),
        ("toomanyrequests: You have reached your pull rate limit", errors.PullFailed, True),
        ("write /var/lib/docker/tmp/x: no space left on device", DiskFullForImage, False),
        ("no matching manifest for linux/amd64 in the manifest list entries", errors.StartFailed, False),
        ("something new", errors.PullFailed, False),
    ],
)
def test_a_refused_pull(text, kind, again):
    error = translate(0, text, PULL)
    assert type(error) is kind
    assert is_transient(error) is again


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("manifest for img:1 not found: manifest unknown", "does not exist"),
        (
            "pull access denied for img, repository does not exist or may require 'docker login'",
            "registry_password do not open it",
        ),
        (
            "toomanyrequests: You have reached your pull rate limit",
            "no more for now; try again later, or send registry_username",
        ),
        ("write /var/lib/docker/tmp/x: no space left on device", "disk full on the node"),
        ('Get "https://r/v2/": dial tcp 10.0.0.1:443: connect: connection refused', "cannot reach the registry"),
        ("received unexpected HTTP status: 502 Bad Gateway", "registry is out of order"),
    ],
)
def test_each_kind_of_failed_pull_has_words_of_its_own(text, says):
    message = translate(0, text, PULL).message
    assert says in message and text in message and "img" in message


def test_a_process_that_could_not_be_started_is_the_callers_fault():
    error = not_started('OCI runtime exec failed: exec: "x": executable file not found in $PATH', Doing("run x"))
    assert type(error) is errors.BadRequest
    assert type(not_started("Container a is not running", Doing("run x"))) is errors.SandboxGone
