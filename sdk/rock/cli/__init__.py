"""The `rock` command."""
