"""Lines on the terminal, whole even where several threads print."""


def say(line: str) -> None:
    """Print `line` in one write and at once."""
    print(f"{line}\n", end="", flush=True)
