"""Calls and their answers in Redis: claim once, complete once, wait for the completion."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.calls import Call, CallState, Claim, ClaimWord, Route, bulk_apart, encode
from app.clock import Clock, RedisClock
from app.database import Client, Scripts, flat, redis_faults
from app.inbox import Inbox, Waiter
from app.keys import Keys
from app.letters import NODE_MARK, Letter
from app.records import Event, State
from app.tally import CALL_SECONDS, CALL_WAITS, CALLS, Tally
from rock.errors import BadRequest, NodeLost, NotFound, NotRunning, RockError, SandboxGone

# An envelope up to this many bytes rides in the message that announces it, which saves its reader a round trip.
# Every API process gets every message, so big ones stay out of it.
INLINE_LIMIT = 32 * 1024

# Of how many sessions of a sandbox it is known which command they ran last; of more, those that were used last.
LAST_SESSIONS = 16


class ResultStore:
    """Claims, completions and waits. One per process; its subscription starts with the first wait."""

    def __init__(
        self, redis: Client, keys: Keys, lost_after: float = 15.0, ttl: float = 3600.0, tally: Tally | None = None,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """
        Params:
            redis: client with decoded responses.
            lost_after: seconds without a heartbeat after which a node gets no new call.
            ttl: seconds for which an answer can be fetched again.
            tally: counts the answers.
            clock: tells the time to those who work with answers; None: that of `redis`.
        """
        self._redis, self._keys, self._lost_after, self._ttl = redis, keys, lost_after, ttl
        self._tally, self.clock = tally, clock or RedisClock(redis)
        scripts = Scripts(redis)
        self._claim = scripts.load("known", "claim")
        self._take, self._complete, self._position = (scripts.load(name) for name in ("take", "complete", "position"))
        # For those who wait for something else than one call's answer, and to let all waiters go.
        self.inbox = Inbox(redis, keys.done(), self.read)

    def claim(
        self, call: Call, now: float, *, admin: bool = False, need_running: bool = True, letter: Letter | None = None
    ) -> Claim:
        """Claim `call` on its sandbox in one script: seen by its owner, running, lease prolonged, in flight on its node.

        Params:
            now: epoch seconds.
            admin: the caller sees every owner's sandboxes.
            need_running: False for calls that an ended sandbox takes too (stop).
            letter: the message for the node's queue; a new call is sent with it in the same step.
        Returns:
            NEW (without a letter, the caller must now send it to `claim.node`), ATTACHED (wait for it) or DONE (with the envelope).
        Raises:
            BadRequest: the request id was used for another route, sandbox or body.
            NotFound, NotRunning, SandboxGone, NodeLost: about the sandbox.
        """
        keys, fields = self._keys, call.to_hash()
        lost_before = now - self._lost_after
        args: list[Any] = [now, fields["fingerprint"], call.owner, int(admin), int(need_running), lost_before]
        args += [keys.node("*"), keys.node_leases("*"), keys.node_inflight("*"), call.call_id]
        args += [letter.key, letter.text, NODE_MARK] if letter else ["", "", NODE_MARK]
        args += [call.body.get("session", "") if call.route == Route.RUN_IN_SESSION else "", LAST_SESSIONS]
        args += flat(fields)
        with redis_faults():
            if "bulk_apart" in fields:
                # Before the claim, since a node may take the call at once. Of a refused one it expires.
                self._redis.set(keys.bulk(call.call_id), bulk_apart(call.body)[1], ex=int(self._ttl), nx=True)
            reply = self._claim([keys.call(call.call_id), keys.sandbox(call.sandbox_id)], args)
        claim = Claim.from_reply(reply)
        if "bulk_apart" in fields and claim.word not in (ClaimWord.NEW, ClaimWord.ATTACHED, ClaimWord.CONFLICT):
            with redis_faults():
                self._redis.delete(keys.bulk(call.call_id))  # no call needs it
        if claim.word in (ClaimWord.NEW, ClaimWord.ATTACHED, ClaimWord.DONE):
            return claim
        raise refusal(call, claim)

    def load(self, call_id: str) -> Call | None:
        """Return the call with its state and, once done, its envelope; None when unknown or forgotten."""
        with redis_faults():
            fields = self._redis.hgetall(self._keys.call(call_id))
        return Call.from_hash(call_id, self._with_bulk(call_id, fields)) if fields else None

    def _with_bulk(self, call_id: str, fields: dict[str, str]) -> dict[str, str]:
        """Return the fields of a call with the text that has a key of its own."""
        if "bulk_apart" not in fields:
            return fields
        with redis_faults():
            return {**fields, "bulk": self._redis.get(self._keys.bulk(call_id)) or ""}

    def read(self, call_id: str) -> str | None:
        """Return the answer of a call as JSON text; None while it is open or when it is unknown."""
        with redis_faults():
            text: str | None = self._redis.hget(self._keys.call(call_id), "envelope")
        return text

    def read_output(self, call_id: str) -> bytes | None:
        """Return what a finished call printed, None when that is not stored (it runs, or its output is long)."""
        with redis_faults():
            text = self._redis.hget(self._keys.call(call_id), "output")
        return None if text is None else str(text).encode("latin-1")

    def heads(self, call_ids: list[str]) -> list[Call]:
        """Return those of the calls that are known, without bodies and envelopes, in one round trip."""
        names = ("request_id", "owner", "route", "sandbox", "node", "created", "deadline", "state", "started")
        with redis_faults():
            pipe = self._redis.pipeline(transaction=False)
            for call_id in call_ids:
                pipe.hmget(self._keys.call(call_id), names)
            rows = pipe.execute()
        found = [(call_id, dict(zip(names, row, strict=True))) for call_id, row in zip(call_ids, rows, strict=True)]
        return [Call.from_hash(call_id, fields) for call_id, fields in found if fields["state"]]

    def position(self, call_id: str) -> int | None:
        """Return how many calls the session of an open call runs before it; None when it is done, or waits in no session.

        The order is that of the claims, whose clocks may differ by milliseconds between API processes.
        """
        args = [call_id, self._keys.node_inflight("*"), self._keys.call("*")]
        with redis_faults():
            before: int = self._position([self._keys.call(call_id)], args)
        return before if before >= 0 else None

    def withdraw(self, call_id: str, error: RockError, now: float) -> None:
        """Undo a claim that could not be sent: waiters get `error`, and the id is free for the next try."""
        if self.fail(call_id, error, now, only_pending=True):
            with redis_faults():
                self._redis.delete(self._keys.call(call_id))

    def drop(self, call_id: str) -> None:
        """Forget an answered call that nobody asks for again: a question of our own, whose answer may be large."""
        with redis_faults():
            if self._redis.hget(self._keys.call(call_id), "state") == CallState.DONE.value:
                self._redis.delete(self._keys.call(call_id))

    def take(self, call_id: str, now: float) -> Call | None:
        """Return the call and note that its node runs it; None when it must not run: done, unknown or overdue.

        A call that was running already is returned too: submitting is idempotent, and so recovery is to take again.
        What is returned has no deadline: that was the one for taking it.
        """
        with redis_faults():
            flat = self._take([self._keys.call(call_id)], [now])
        if not flat:
            return None
        fields = self._with_bulk(call_id, dict(zip(flat[::2], flat[1::2], strict=True)))
        return replace(Call.from_hash(call_id, fields), deadline=None)

    def complete(
        self, call_id: str, envelope: dict[str, Any], now: float,
        *, only_pending: bool = False, output: bytes | None = None,
    ) -> bool:  # fmt: skip
        """Answer a call; the first answer wins. Gives back all that the call held and wakes its waiters.

        Params:
            envelope: the whole answer of the wire.
            only_pending: answer only if no node has taken it yet.
            output: what the command printed, byte for byte, for readers by offset; None: its node keeps it.
        Returns:
            True when this envelope became the answer.
        """
        keys = self._keys
        args = [call_id, encode(envelope), now, int(self._ttl), int(only_pending), keys.done(), INLINE_LIMIT]
        args += [keys.sandbox("*"), keys.node_leases("*"), keys.node_inflight("*")]
        # As latin-1 text: this client's strings are UTF-8, and bytes must come back as they were.
        args += [] if output is None else [output.decode("latin-1")]
        with redis_faults():
            reply = self._complete([keys.call(call_id)], args)
        if reply and self._tally is not None and self._tally.enabled:
            self._count(self._tally, reply, envelope, now)
        return bool(reply)

    @staticmethod
    def _count(tally: Tally, reply: list[str], envelope: Mapping[str, Any], now: float) -> None:
        """Count an answer; the first writer alone comes here, so each call is counted once."""
        route, created, started = reply
        tally.count(CALLS, route, "ok" if envelope["status"] == "Success" else str(envelope["result"]["kind"]))
        tally.observe(CALL_SECONDS, now - float(created), route)
        if started:
            tally.observe(CALL_WAITS, float(started) - float(created), route)

    def fail(self, call_id: str, error: RockError, now: float, *, only_pending: bool = False) -> bool:
        """Answer a call with an error; as `complete`."""
        return self.complete(call_id, error.to_envelope(), now, only_pending=only_pending)

    def expect(self, call_id: str) -> Waiter:
        """Return a context in which the completion of `call_id` is not missed; enter it before claiming."""
        return self.inbox.expect(call_id)

    def wait(self, call_id: str, timeout: float | None) -> dict[str, Any] | None:
        """Return the envelope of `call_id`, waiting up to `timeout` seconds (None: for ever); None when still open."""
        with self.expect(call_id) as waiter:
            text = self.read(call_id) or waiter.wait(timeout)
        envelope: dict[str, Any] | None = json.loads(text) if text else None
        return envelope

    def inflight(self, node: str, before: float | None = None) -> list[str]:
        """Return the ids of the calls that `node` has not answered, oldest first; only those it was given until `before`."""
        with redis_faults():
            return self._redis.zrangebyscore(
                self._keys.node_inflight(node), "-inf", "+inf" if before is None else before
            )

    def close(self) -> None:
        """End the subscription; waiters still inside return None at their own timeouts."""
        self.inbox.close()


def refusal(call: Call, claim: Claim) -> RockError:
    """Return the error that tells the caller why `claim` was refused."""
    if claim.word is ClaimWord.CONFLICT:
        text = f"request_id {call.request_id!r} was already used for another route, sandbox or body; use a new one"
        return BadRequest(text, request_id=call.request_id)
    return refused(call.sandbox_id, claim)


def refused(sandbox_id: str, claim: Claim) -> RockError:
    """Return the error that tells a caller why nothing can be asked of a sandbox."""
    name = f"Sandbox {sandbox_id}"
    about: dict[str, Any] = {"sandbox_id": sandbox_id}
    if claim.word is ClaimWord.MISSING:
        return NotFound(f"{name} not found", **about)
    if claim.word is ClaimWord.LOST:
        return NodeLost(f"{name} is on node {claim.node}, which does not answer (node lost)", node=claim.node, **about)
    why = f" ({claim.reason})" if claim.reason else ""
    if claim.stop_event in [event.value for event in Event if event.is_death]:
        return SandboxGone(f"{name} is gone: {claim.stop_event}{why}; start a new one", **about)
    if claim.state == State.PENDING.value:
        return NotRunning(f"{name} is still starting; wait until is_alive says true", **about)
    return NotRunning(f"{name} is {claim.state}{why}; start a new one", **about)
