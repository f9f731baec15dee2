"""Options of doctor and completion."""

from __future__ import annotations

from typing import Any

from m2bayes.options._types import command

SHELLS = ("bash", "zsh", "fish")


def add(commands: Any) -> None:
    """Add the commands that look after the installation."""
    command(
        commands,
        "doctor",
        "is this installation sound: versions, files, optional parts",
        more=" Exit code 2 if something is broken.",
    )
    completion = command(
        commands,
        "completion",
        "script that completes commands, options and names in a shell",
        more=' For bash: eval "$(m2bayes completion bash)" in ~/.bashrc; for zsh the same in '
        "~/.zshrc; for fish: m2bayes completion fish > ~/.config/fish/completions/m2bayes.fish.",
    )
    completion.add_argument("shell", choices=SHELLS)
