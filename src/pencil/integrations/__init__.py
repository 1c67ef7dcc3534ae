"""PENCIL inside other people's loops; each loop has a module of its own, which needs that loop's package."""

from pencil.integrations.pencil_labels import PencilLabels, WithRows

__all__ = ["PencilLabels", "WithRows"]
