"""Loss scaling: gradients too small for 16 bits survive, and steps that overflow are skipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cocoll.errors import UsageError

__all__ = ["LossScaler"]


class LossScaler:
    """The factor by which a loss is multiplied: ``torch.amp.GradScaler`` for fused optimizers.

    It is given to one optimizer as ``scaler=``. `FusedOptimizer.step` divides the reduced gradients
    by the scale, skips the update on all ranks where one of them is not finite, and adapts the
    scale; there is nothing else to call but `scale`.

    Parameters
    ----------
    init_scale : float, default 65536
        The first scale.
    growth_factor : float, default 2
        By what the scale grows after `growth_interval` steps in a row that were taken.
    backoff_factor : float, default 0.5
        By what it shrinks after a step that was skipped.
    growth_interval : int, default 2000
        After how many steps it grows.

    Raises
    ------
    UsageError
        A number is out of range.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not (init_scale > 0 and growth_factor > 1 and 0 < backoff_factor < 1):
            raise UsageError(
                f"a LossScaler wants init_scale > 0, growth_factor > 1 and 0 < backoff_factor < 1; "
                f"got {init_scale}, {growth_factor} and {backoff_factor}"
            )
        if growth_interval < 1:
            raise UsageError(f"growth_interval must be at least 1; got {growth_interval}")
        self._scale = float(init_scale)
        self._growth_factor = float(growth_factor)
        self._backoff_factor = float(backoff_factor)
        self._growth_interval = int(growth_interval)
        self._growth_tracker = 0

    def scale(self, loss: Any) -> Any:
        """Multiply a loss, or anything else, by the scale.

        Parameters
        ----------
        loss : torch.Tensor
            What backward starts from.

        Returns
        -------
        torch.Tensor
            Its product with the scale.
        """
        return loss * self._scale

    def get_scale(self) -> float:
        """Give the scale."""
        return self._scale

    def adapt(self, is_finite: bool) -> None:
        """Take note of a step; `FusedOptimizer.step` does.

        Parameters
        ----------
        is_finite : bool
            Whether it was taken.
        """
        if not is_finite:
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            self._scale *= self._growth_factor
            self._growth_tracker = 0

    def state_dict(self) -> dict[str, Any]:
        """Give the state, under the names that ``torch.amp.GradScaler`` has."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Parameters
        ----------
        state : mapping
            Of a LossScaler, or of a ``torch.amp.GradScaler``.
        """
        self._scale = float(state["scale"])
        self._growth_factor = float(state["growth_factor"])
        self._backoff_factor = float(state["backoff_factor"])
        self._growth_interval = int(state["growth_interval"])
        self._growth_tracker = int(state["_growth_tracker"])
