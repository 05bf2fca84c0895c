"""What was typed and what is only a default."""

from __future__ import annotations

import click
from click.core import ParameterSource


def was_given(name: str) -> bool:
    """Whether the option of the running command was given, by hand or by an environment variable."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def refuse_out_beside_resume() -> None:
    """A run that goes on stays where it is."""
    if was_given("out") and was_given("resume"):
        raise click.UsageError("--out beside --resume has no effect: what goes on stays in its folder; leave it out")
