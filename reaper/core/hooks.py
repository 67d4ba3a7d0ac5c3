"""The hooks of what was reaped are called when the books are closed, each of them, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import HookErrors
from .lease import Expiry, Hook

ErrorHook = Callable[[Exception, Expiry], object]


def call(hooks: Sequence[Hook | None], expired: list[Expiry], on_error: ErrorHook | None) -> None:
    """Call the hook of each of *expired*. A hook may call anything, even register its own uid again.

    Args:
        hooks: One for each of *expired*, None where there is none; or empty, when nobody has one.
        on_error: Called with (error, expiry) when a hook raises. None: see Raises.
    Raises:
        HookErrors: hooks raised and there is no *on_error*. All have run; `.expired` has the list.
    """
    errors: list[Exception] = []
    for hook, expiry in zip(hooks, expired, strict=False):
        if hook is not None:
            try:
                hook(expiry)
            except Exception as error:
                if on_error is None:
                    errors.append(error)
                else:
                    on_error(error, expiry)
    if errors:
        raise HookErrors("hooks raised while reaping", errors, expired)
