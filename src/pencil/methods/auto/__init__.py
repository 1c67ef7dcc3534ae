"""``auto``: the method that sets itself."""

from pencil.methods.auto.method import AutoPencil

__all__ = ["AutoPencil"]
