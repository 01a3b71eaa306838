"""What reaches a run from outside its callback list."""

from typing import Protocol


class Control(Protocol):
    """A run under way, as someone outside may steer it; every call returns at once, in any thread.

    What is asked becomes part of the decision of the next event that is committed, after what the
    callback list asked, under the name `by`: so it is ordered, recorded and replayed like any ack.
    """

    def request_stop(self, by: str, reason: str) -> None:
        """Ask the run to stop (C3)."""

    def patch(self, name: str, value: float, by: str) -> None:
        """Set a number that the compiled step reads, such as `learning_rate`.

        Raises:
            NotTraced, ReadOnlyParam: `name` is none of them.
            ArgumentError: `value` does not fit.
        """
