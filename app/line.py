"""Starts that wait for room: they join a line, and go when it is their turn. Each step is one Lua script (app/lua).

Whoever gives room back (a sandbox that ends, a node that joins or is resumed) lets the next go at once; the sweep repairs what was lost.
The script that places a start also pushes its message to the node, so that no process of ours need live for it.
"""

import json
import logging
from dataclasses import replace
from typing import Any

from app.broker import NodeTask
from app.calls import Call, Claim, ClaimWord
from app.database import Client, Scripts, flat, redis_faults
from app.keys import Keys
from app.letters import CALL_MARK, NODE_MARK, Letter, Letters
from app.nodes import Nodes
from app.placement import image_mark, route_mark, too_large
from app.records import SandboxRecord, millicpus
from app.stock import NO_OFFER, Offer
from rock.errors import Unavailable

log = logging.getLogger(__name__)

# Starts that one script places: Redis does nothing else meanwhile.
BATCH = 64


class Line:
    """The lines of one service."""

    def __init__(
        self,
        redis: Client,
        keys: Keys,
        lost_after: float = 15.0,
        letters: Letters | None = None,
        nodes: Nodes | None = None,
        longest: int = 10_000,
    ) -> None:
        """
        Params:
            redis: client with decoded responses.
            lost_after: seconds without a heartbeat after which a node takes nothing new.
            letters: copies of Celery's messages, for the script to push.
            nodes: sends what the script cannot (eager mode). With neither, starts are placed and not sent.
            longest: starts that may wait for room, all lines together.
        """
        self._redis, self._keys, self._lost_after = redis, keys, lost_after
        self._letters, self._nodes, self._longest = letters, nodes, longest
        scripts = Scripts(redis)
        self._enter = scripts.load("known", "room", "line", "stock", "enter")
        self._restart = scripts.load("known", "room", "line", "restart")
        self._displace = scripts.load("room", "line", "displace")
        self._advance = scripts.load("room", "line", "advance")
        # The first argument of every script that follows room.lua.
        self.names = json.dumps(keys.ledger())

    def enter(self, record: SandboxRecord, call: Call, now: float, offer: Offer = NO_OFFER) -> Claim:
        """Make a pending sandbox in line for room: its record and its start call, or nothing; or take one that is in stock.

        Params:
            record: without a node, with `start_call=call.call_id`.
            call: its deadline is when the start gives up waiting (epoch seconds).
            now: epoch seconds.
            offer: what may be taken from stock instead.
        Returns:
            Claim with word NEW or ATTACHED (with the node, "" while it waits), DONE (with its node when it was taken from
            stock just now), CONFLICT (request id used for something else) or EXISTS (id taken).
        Raises:
            BadRequest, NoCapacity: no living node could ever take it.
            Unavailable: Redis or the queue is down, or as many starts wait as may.
        """
        claimed, fields = replace(call, node="").to_hash(), record.to_hash()
        fields["image"] = image_mark(str(record.spec.get("image", "")))
        fields["route"] = route_mark(record.owner, record.route_key)
        args = [
            *self.arguments(now, self._letter()),
            claimed["fingerprint"],
            call.owner,
            call.call_id,
            record.sandbox_id,
            record.line,
        ]
        args += [millicpus(record.cpus), record.memory, call.deadline or now, BATCH, self._longest]
        args += [offer.mark, offer.answer, offer.kept, len(fields), len(offer.fields)]
        args += [*flat(fields), *flat(offer.fields), *flat(claimed)]
        with redis_faults():
            reply = self._enter([self._keys.call(call.call_id), self._keys.sandbox(call.sandbox_id)], args)
        if reply[0] == "crowded":
            text = f"{self._longest} starts wait for room already, and no more may (runtime.waiting_limit); send it again later"
            raise Unavailable(text, sandbox_id=record.sandbox_id)
        if reply[0] == "large":
            raise too_large(record, int(reply[1]) / 1000, int(reply[2]), int(reply[3]))
        self._send(reply[2:] if reply[0] == ClaimWord.NEW else [])
        return Claim.from_reply(reply[:2] if reply[0] == ClaimWord.NEW else reply)

    def restart(self, record: SandboxRecord, call: Call, now: float, ended: str) -> Claim:
        """Begin the next life of a stopped sandbox, on its own node and without a wait: its files are there.

        Params:
            record: of the next life, with `start_call=call.call_id`.
            ended: the start call of the life that ended; it must still be stopped.
        Returns:
            Claim with word NEW, ATTACHED, DONE, CONFLICT, EXISTS (nothing to restart) or FULL (no room on that node, or
            it is silent or draining).
        Raises:
            Unavailable: Redis or the queue is down.
        """
        claimed, fields = replace(call, node=record.node).to_hash(), record.to_hash()
        args = [
            *self.arguments(now, self._letter()),
            claimed["fingerprint"],
            call.call_id,
            record.sandbox_id,
            record.node,
        ]
        args += [millicpus(record.cpus), record.memory, ended, len(fields), *flat(fields), *flat(claimed)]
        with redis_faults():
            reply = self._restart([self._keys.call(call.call_id), self._keys.sandbox(call.sandbox_id)], args)
        claim = Claim.from_reply(reply)
        if claim.word is ClaimWord.NEW:
            self._send([call.call_id, claim.node])
        return claim

    def displace(self, call: Call, node: str, now: float, closed: float) -> bool:
        """Have another node take a start that `node` cannot carry out: it is the first in its line again.

        False if it is not that node's any more, or was put back twice before.

        Params:
            closed: seconds for which that node takes nothing new.
        Raises:
            Unavailable: Redis is down.
        """
        args = [*self.arguments(now), call.sandbox_id, call.call_id, node, now + closed]
        with redis_faults():
            moved = self._displace([self._keys.sandbox(call.sandbox_id)], args)
        if moved:
            self.freed(now)
        return bool(moved)

    def advance(self, now: float) -> int:
        """Let those whose turn it is go, as long as there is room; return how many. Raises Unavailable."""
        count = 0
        while True:
            with redis_faults():
                placed = self._advance([], [*self.arguments(now, self._letter()), BATCH])
            self._send(placed)
            count += len(placed) // 2
            if len(placed) < 2 * BATCH:
                return count

    def freed(self, now: float) -> None:
        """As `advance`, for those who have just given room back: their own work is done whatever becomes of this."""
        try:
            self.advance(now)
        except Unavailable as error:
            log.warning("waiting starts could not be placed, the sweep will: %s", error.message)

    def waiting(self) -> int:
        """Return how many starts wait for room."""
        with redis_faults():
            return int(self._redis.zcard(self._keys.waiting()))

    def lengths(self) -> dict[str, tuple[int, float]]:
        """Return for each line, and for that of no cluster always, how many wait in it and since when its first does (epoch seconds)."""
        keys = self._keys
        with redis_faults():
            names = ["", *(name for name in self._redis.zrange(keys.lines(), 0, -1) if name)]
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.zcard(keys.line(name)).zrange(keys.line(name), 0, 0)
            found = pipe.execute()
            counts, heads = found[::2], [head[0] if head else "" for head in found[1::2]]
            for head in heads:
                pipe.hget(keys.sandbox(head), "created")
            times = [float(text or 0) for text in pipe.execute()]
        return dict(zip(names, zip(counts, times, strict=True), strict=True))

    def overdue(self, now: float, limit: int = 1000) -> list[str]:
        """Return the sandboxes whose start has waited to the end of its patience, at most `limit`."""
        with redis_faults():
            found: list[str] = self._redis.zrangebyscore(self._keys.waiting(), "-inf", now, 0, limit)
        return found

    def heads(self) -> list[str]:
        """Return the sandboxes that are first in their lines."""
        keys = self._keys
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for line in self._redis.zrange(keys.lines(), 0, -1):
                pipe.zrange(keys.line(line), 0, 0)
            return [found[0] for found in pipe.execute() if found]

    def arguments(self, now: float, letter: Letter | None = None) -> list[Any]:
        """Return the first arguments of every script that follows line.lua; `letter` is sent to the node of what it places."""
        letter = letter or Letter("", "")
        return [self.names, now, now - self._lost_after, letter.key, letter.text, NODE_MARK, CALL_MARK]

    def _letter(self) -> Letter | None:
        """Return the message that starts a sandbox; None when we send ourselves."""
        return self._letters.write(NodeTask.START, CALL_MARK) if self._letters else None

    def _send(self, placed: list[str]) -> None:
        """Note what was placed, and send it where the script could not (eager mode)."""
        by_hand = self._nodes if placed and self._letter() is None else None
        for call_id, node in zip(placed[::2], placed[1::2], strict=True):
            log.info("start placed", extra={"call_id": call_id, "node": node})
            if by_hand is not None:
                by_hand.send(NodeTask.START, call_id, node)
