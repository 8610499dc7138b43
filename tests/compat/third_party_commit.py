"""A commit with the third-party client; run by that client's Python, never by ours.

Prints one JSON object: what each step gave. Arguments: base URL, image, name of the image to make.
"""

import asyncio
import json
import sys

from rock.actions import ReadFileRequest, WriteFileRequest
from rock.sdk.sandbox.client import Sandbox
from rock.sdk.sandbox.config import SandboxConfig


async def main(url, image, tag):
    """Commit a sandbox, then start another from what was made."""
    facts = {}
    first = Sandbox(SandboxConfig(base_url=url, image=image, memory="256m", cpus=0.25))
    await first.start()
    try:
        await first.write_file(WriteFileRequest(content="kept", path="/file"))
        facts["begun"] = (await first.commit_async(tag, "", "")).model_dump(mode="json")
        while (status := await first.get_commit_status()).phase == "RUNNING":
            await asyncio.sleep(0.1)
        facts["status"] = status.model_dump(mode="json")
        facts["again"] = (await first.commit(tag, "", "", interval=0.1)).model_dump(mode="json")
    finally:
        await first.stop()
    second = Sandbox(SandboxConfig(base_url=url, image=tag, memory="256m", cpus=0.25))
    await second.start()
    try:
        facts["content"] = (await second.read_file(ReadFileRequest(path="/file"))).content
    finally:
        await second.stop()
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
