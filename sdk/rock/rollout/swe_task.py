"""A SWE task: an instance of a data set in the form of SWE-bench, and what its tests' report says. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rock.errors import BadRequest
from rock.rollout.swe import get_swe_bench_image

_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_TOUCHED = re.compile(r"^(?:---|\+\+\+) [ab]/([^\t\n]+)", re.MULTILINE)
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_PASSED = re.compile(r"^PASSED (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class SweTask:
    """One instance.

    Params:
        instance_id: such as `django__django-16911`.
        base_commit: where the repository stands when the agent begins.
        problem_statement: what the agent is asked to do.
        test_patch: diff that adds the tests; the agent does not see it.
        tests: pytest ids that must pass in the end: those that fail before, and those that must go on passing.
        test_command: runs the tests; the files of `tests` are appended. Must report as `pytest -rA` does.
        image: None: the one that SWE-bench names after the instance.
    Raises:
        BadRequest: a field that cannot be used; the message names it.
    """

    instance_id: str
    base_commit: str
    problem_statement: str = ""
    test_patch: str = ""
    tests: tuple[str, ...] = ()
    test_command: str = "python -m pytest -rA"
    image: str | None = None

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.base_commit):
            raise BadRequest(f"base_commit {self.base_commit!r} of {self.instance_id} is not a revision")
        get_swe_bench_image(self.instance_id)

    @classmethod
    def from_record(cls, record: Mapping[str, Any], **changes: Any) -> Self:
        """Return the task of a row of the data set, whose FAIL_TO_PASS and PASS_TO_PASS are lists or JSON texts.

        Params:
            record: the row.
            changes: fields to set otherwise.
        Raises:
            BadRequest: a field is missing or cannot be used.
        """
        try:
            tests = [test for name in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in _listed(record.get(name, []))]
            fields = {name: record[name] for name in ("instance_id", "base_commit")}
        except (KeyError, ValueError) as error:
            raise BadRequest(f"the record {record.get('instance_id')!r} has no usable {error}") from error
        fields.update({name: record.get(name, "") for name in ("problem_statement", "test_patch")})
        return cls(**{**fields, "tests": tuple(tests), **changes})

    @property
    def image_name(self) -> str:
        """The image to start."""
        return self.image or get_swe_bench_image(self.instance_id)

    def test_files(self) -> list[str]:
        """Return the files that hold the tests."""
        return sorted({test.partition("::")[0] for test in self.tests})

    def patched_files(self) -> list[str]:
        """Return the files that the test patch touches."""
        return sorted(set(_TOUCHED.findall(self.test_patch)))

    def grade(self, report: str) -> float:
        """Return 1.0 if a report says that every one of `tests` passed, else 0.0.

        Only the last summary counts: what a test prints comes before it.
        """
        summary = _SUMMARY.split(report)
        passed = set(_PASSED.findall(summary[-1])) if len(summary) > 1 else set()
        return 1.0 if self.tests and passed.issuperset(self.tests) else 0.0


def _listed(value: Any) -> list[str]:
    """Return a list of texts from one, or from its JSON."""
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        raise ValueError("list of tests")
    return list(found)
