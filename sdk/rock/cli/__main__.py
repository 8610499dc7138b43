"""`python -m rock.cli`: the same as `rock`, where no script is installed."""

from rock.cli.main import cli

cli(prog_name="rock")
