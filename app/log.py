"""Sets up logging for one process: level, format, place, time zone; and keeps secrets out of every line.

Each entry point (API, workers, supervisor) calls `set_up` once. Celery workers call it from the `setup_logging` signal,
so that Celery does not install handlers of its own.

An event is one line. Its ids go into `extra=` (`request_id`, `sandbox_id`, `call_id`, `node`): in text they follow the message as `key=value`, in JSON they are members.
"""

import json
import logging
import logging.handlers
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from app.config import Config

# What looks like a secret wherever it stands; known keys are added to it by value.
_SECRETS = re.compile(
    r"""(?ix)
    (authorization["']?\s*[:=]\s*["']?(?:bearer|basic)\s+ | x-(?:api-)?key["']?\s*[:=]\s*["']?
     | (?:password|passwd|secret|token|api_key)["']?\s*[:=]\s*["']?)
    [^\s"',;&]+
    """
)
_URL_PASSWORDS = re.compile(r"(://[^\s:/@]*:)[^\s/@]+(?=@)")
_MASK = "***"
_PLAIN = re.compile(r"[^\s\"=]+")
# Fields of every LogRecord; anything else on a record came from `extra=` and belongs in a JSON line.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


# Libraries whose own level would drown ours: two lines per task from Celery, connection details from the others.
_QUIETER = {
    "celery.app.trace": "WARNING",
    "celery.worker.strategy": "WARNING",
    "celery": "INFO",
    "kombu": "INFO",
    "amqp": "INFO",
    "redis": "INFO",
    "docker": "INFO",
    "urllib3": "INFO",
    "asyncio": "INFO",
}


class Redactor:
    """Masks what looks like a secret, and the configured keys wherever they appear."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        # Very short keys would mask ordinary words; they still match by the names around them.
        self._known = sorted((secret for secret in secrets if len(secret) >= 6), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text with its secrets masked."""
        for secret in self._known:
            text = text.replace(secret, _MASK)
        for pattern in (_SECRETS, _URL_PASSWORDS):
            text = pattern.sub(lambda match: match[1] + _MASK, text)
        return text


class _Formatter(logging.Formatter):
    """A line of text or of JSON, in the configured time zone, redacted as a whole (tracebacks too)."""

    def __init__(self, process: str, zone: ZoneInfo, as_json: bool, redact: Redactor) -> None:
        super().__init__(f"%(asctime)s %(levelname)-7s {process} %(name)s: %(message)s")
        self._process, self._zone, self._as_json, self._redact = process, zone, as_json, redact

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # logging's name
        """Return the record's time, with zone, in milliseconds."""
        return datetime.fromtimestamp(record.created, self._zone).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        """Return the one line of text of an event; a message that holds line breaks cannot pose as two of them."""
        record.message = record.message.replace("\n", "\\n").replace("\r", "\\r")
        return " ".join([super().formatMessage(record), *(f"{key}={_word(value)}" for key, value in _added(record))])

    def format(self, record: logging.LogRecord) -> str:
        """Return the finished, redacted line."""
        return self._redact(self._json(record) if self._as_json else super().format(record))

    def _json(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON object, with what `extra=` added."""
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(_added(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _added(record: logging.LogRecord) -> list[tuple[str, Any]]:
    """Return what `extra=` added to a record, without what is not known."""
    return [(key, value) for key, value in vars(record).items() if key not in _STANDARD and value not in (None, "")]


def _word(value: Any) -> str:
    """Return a value as one word, quoted where it would not be one."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def set_up(config: Config, process: str) -> None:
    """Route the root logger to the configured place, replacing any handler.

    Params:
        process: name of this process, shown in every line and used as the file's name.
    """
    handler: logging.Handler = logging.StreamHandler()
    if config.log.path:
        folder = Path(config.log.path).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        # Watched: logrotate may move the file away under a running process.
        handler = logging.handlers.WatchedFileHandler(folder / f"{process}.log", encoding="utf-8")
    redact = Redactor((*(entry.key for entry in config.auth.keys), config.metrics.key))
    handler.setFormatter(_Formatter(process, ZoneInfo(config.log.time_zone), config.log.format == "json", redact))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.log.level)
    for name, level in _QUIETER.items():
        logging.getLogger(name).setLevel(level)
