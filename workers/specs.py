"""What a start asks for, as what a deployment is told: with the node's limits, and what its configuration allows."""

from __future__ import annotations

import math

from app.config import Config
from rock.actions import StartRequest
from workers.deployments import docker_args
from workers.deployments.abstract import ContainerSpec
from workers.deployments.seccomp import read_profiles


def policy_of(config: Config) -> docker_args.Policy:
    """Return what this node lets `docker_args` do. Errors: BadRequest for a seccomp profile of its configuration that cannot be read."""
    node = config.node
    return docker_args.Policy(allowed_mounts=node.allowed_mounts, seccomp=read_profiles(node.seccomp_profiles))


def spec_of(config: Config, policy: docker_args.Policy, sandbox_id: str, request: StartRequest) -> ContainerSpec:
    """Return the container of a sandbox that is to start on this node. Errors: BadRequest for a flag that it does not allow."""
    runtime = config.runtime
    options = docker_args.parse(request.docker_args, policy)
    # A node may promise more CPUs than it has (overcommit); a container cannot be given more than there are.
    cpus = min(request.limit_cpus or request.cpus, config.node.cpus)
    return ContainerSpec(
        sandbox_id=sandbox_id, image=request.image, cpus=cpus,
        memory_bytes=request.memory_bytes(), pids=runtime.pids_limit, disk_bytes=request.disk_bytes(),
        tmpfs_bytes=runtime.tmpfs_size, env=request.env, options=options,
        threads=math.ceil(cpus) if runtime.tell_cpus else None, runtime=request.runtime or ("kata" if request.use_kata_runtime else None), network=runtime.network,
    )  # fmt: skip
