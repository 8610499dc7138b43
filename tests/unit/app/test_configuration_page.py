"""docs/configuration.md is made from the registry."""

import re

from scripts import configuration


def test_the_configuration_page_is_current_and_says_what_every_key_means():
    text = configuration.page()
    assert configuration.FILE.read_text(encoding="utf-8") == text, "run python -m scripts.configuration"
    silent = [line for line in text.splitlines() if re.fullmatch(r"\| `\w+` \|.*\|\s*\|", line)]
    assert not silent, f"say in app/config.py what these mean: {silent}"
