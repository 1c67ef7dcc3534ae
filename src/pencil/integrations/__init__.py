"""PENCIL inside other people's loops; each loop has a module of its own, which needs that loop's package."""

from pencil.integrations.labels import PencilLabels
from pencil.integrations.rows import WithRows

__all__ = ["PencilLabels", "WithRows"]
