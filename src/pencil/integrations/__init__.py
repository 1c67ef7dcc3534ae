"""PENCIL in other training loops; each has its own module, which needs the loop's package."""

from pencil.integrations.pencil_labels import PencilLabels, WithRows

__all__ = ["PencilLabels", "WithRows"]
