"""Logging: where lines go, what they hold, and that no secret is among it."""

import json
import logging

import pytest

from app.config import load
from app.log import Redactor, set_up


@pytest.fixture(autouse=True)
def root_logger_as_before():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(tmp_path, work, **environ):
    set_up(load(environ={"ROCK_LOGGING_PATH": str(tmp_path), **environ}), "api")
    work()
    return (tmp_path / "api.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def", "abc.def"),
        ("{'X-API-Key': 'abc123'}", "abc123"),
        ('{"registry_password": "hunter2", "x": 1}', "hunter2"),
        ("token=abc123&x=1", "abc123"),
        ("redis://:hunter2@10.0.0.1:6379/0", "hunter2"),
        ("redis://me:hunter2@10.0.0.1:6379/0", "hunter2"),
        ("the key is a-long-known-key, see", "a-long-known-key"),
    ],
)
def test_secrets_are_masked_wherever_they_stand(text, secret):
    shown = Redactor(("a-long-known-key",))(text)
    assert secret not in shown and "***" in shown


@pytest.mark.parametrize("text", ["redis://10.0.0.1:6379/0", "sandbox s1: start on node n1", "12:30:00 it works"])
def test_the_rest_is_left_alone(text):
    assert Redactor(("a-long-known-key",))(text) == text


def test_a_traceback_is_redacted_too(tmp_path):
    def work():
        try:
            raise ValueError("password=hunter2")
        except ValueError:
            logging.getLogger("x").exception("it broke")

    text = "\n".join(lines_of(tmp_path, work))
    assert "it broke" in text and "Traceback" in text and "hunter2" not in text


def test_json_lines_carry_what_was_added(tmp_path):
    def work():
        logging.getLogger("x").info("started %s", "s1", extra={"sandbox_id": "s1"})

    (line,) = lines_of(tmp_path, work, ROCK_LOG__FORMAT="json", ROCK_TIME_ZONE="Asia/Tokyo")
    found = json.loads(line)
    assert found["message"] == "started s1" and found["sandbox_id"] == "s1" and found["process"] == "api"
    assert found["time"].endswith("+09:00")


def test_text_lines_carry_it_too_each_value_as_one_word(tmp_path):
    def work():
        extra = {"sandbox_id": "s1", "request_id": None, "error": 'no such "thing"\nat all'}
        logging.getLogger("x").info("it failed", extra=extra)

    (line,) = lines_of(tmp_path, work)
    assert line.endswith(r'x: it failed sandbox_id=s1 error="no such \"thing\"\nat all"')


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_with_line_breaks_is_one_line(tmp_path, form):
    def work():
        logging.getLogger("x").info("asked for %s", "a\r\n2026-01-01 INFO api: all is well")

    (line,) = lines_of(tmp_path, work, ROCK_LOG__FORMAT=form)
    assert "all is well" in line and "asked for" in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_added_to_a_line_is_masked(tmp_path, form):
    def work():
        logging.getLogger("x").info("it failed", extra={"error": "login failed, password=hunter2"})

    (line,) = lines_of(tmp_path, work, ROCK_LOG__FORMAT=form)
    assert "it failed" in line and "hunter2" not in line


def test_the_level_is_the_configured_one(tmp_path):
    def work():
        logging.getLogger("x").info("too quiet")
        logging.getLogger("x").error("loud enough")

    (line,) = lines_of(tmp_path, work, ROCK_LOGGING_LEVEL="ERROR")
    assert line.endswith("x: loud enough")
