"""The learning rate as callbacks set it."""

from railbus.schemas.params import CallbackParams


def require_rate(cb_params: CallbackParams) -> None:
    """Refuse, before its first step, a run whose learning rate cannot be set.

    Raises:
        ParamError: the optimizer does not inject it; says how to.
        NotTraced: it follows a schedule.
    """
    cb_params.learning_rate = cb_params.learning_rate
