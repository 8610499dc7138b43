"""A folder as one tar, and how a sandbox unpacks it. Standard library only: the SDK and the rollout client share it."""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rock.errors import BadRequest

# Read before anything is removed: the archive may lie in the folder that is emptied. The folder itself stays, and so
# its mode and owner, and a link to it. Names go to rm in portions, since a command line has an end.
_UNPACK = """\
exec 3< "$1" && rm -f -- "$1" && mkdir -p -- "$2" && cd -- "$2" || exit 1
shopt -s dotglob nullglob
old=(*)
[[ $3 ]] && old=()
while ((${#old[@]})); do
  rm -rf -- "${old[@]:0:500}" || exit 1
  old=("${old[@]:500}")
done
tar -xpf - <&3
"""


def pack(source: Path, archive: Path) -> None:
    """Write a tar of a folder's contents: dotfiles, empty folders, modes, hard and symbolic links as they are.

    Owners are left to the sandbox: our user ids mean nothing there.

    Params:
        source: the folder, or a link to it.
        archive: the file to write, outside of source.
    Raises:
        NotADirectoryError: source is no folder.
        OSError: something in it cannot be read, or became shorter while it was read; the message names it.
    """
    root = source.resolve()
    if not root.is_dir():
        raise NotADirectoryError(f"{source} is not a folder")
    # GNU's own format: busybox reads its long names, but not those of pax, the module's default.
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in _below(root):
            _add(tar, path, os.path.relpath(path, root))


def unpack_command(archive: str, target: str, *, merge: bool = False) -> list[str]:
    """Return the command that replaces a folder's contents in a sandbox by those of an uploaded archive, and removes it.

    The image needs bash and tar.

    Params:
        archive: path of the archive in the sandbox.
        target: the folder there; made if it is missing.
        merge: keep what is in the folder; what has the same name is replaced.
    Raises:
        BadRequest: target is not an absolute path below `/`.
    """
    if not target.startswith("/") or not posixpath.normpath(target).strip("/") or "\0" in target:
        raise BadRequest(f"the folder in the sandbox must be an absolute path below /, is {target!r}")
    return ["bash", "-c", _UNPACK, "bash", archive, target, *(["merge"] if merge else [])]


def unpack(archive: Path, target: Path) -> list[str]:
    """Unpack a tar that came from a sandbox into a local folder, which is made; links and the modes of files come along, owners do not.

    Returns:
        What was left out, and why: a path or a link that leads out of the folder, a device.
    Raises:
        BadRequest: it is no whole archive.
        OSError: it could not be written.
    """
    left_out: list[str] = []

    def harmless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        """Return the member as it may be written, None if it may not."""
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError as error:
            left_out.append(str(error))
            return None

    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter=harmless)
    except tarfile.TarError as error:
        raise BadRequest(f"what the sandbox sent is no whole archive ({error}); try again") from error
    return left_out


def _below(root: Path) -> Iterator[str]:
    """Yield the paths of all that is below a folder, each folder before its contents; links are not followed."""

    def refuse(error: OSError) -> None:
        """Pass on what os.walk would drop: a folder that cannot be read, unless it was deleted meanwhile."""
        if not isinstance(error, FileNotFoundError):
            raise error

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders.sort()
        for name in [*folders, *sorted(files)]:
            yield os.path.join(folder, name)


def _add(tar: tarfile.TarFile, path: str, name: str) -> None:
    """Add one file, folder or link. What was deleted since the folder was listed is left out; so are sockets."""
    try:
        member: tarfile.TarInfo | None = tar.gettarinfo(path, name)
        if member is None:
            return  # A socket is nothing without the process behind it.
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if not member.isreg():
            tar.addfile(member)
            return
        with open(path, "rb") as file:
            # Of a file that grows meanwhile, the part that its header announced.
            tar.addfile(member, file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise OSError(f"{path} could not be packed: {error.strerror or error}") from error
