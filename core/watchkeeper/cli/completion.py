"""`wk completion`: a script for the shell that completes commands and session ids."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print completion for a shell. For bash: eval "$(wk completion bash)" in ~/.bashrc."""
    from click.shell_completion import get_completion_class

    from watchkeeper.cli.app import wk

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(wk, {}, "wk", "_WK_COMPLETE").source())
    return 0
