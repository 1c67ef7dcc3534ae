"""``auto``: the method that sets itself."""

from pencil.methods.auto.method import Auto

__all__ = ["Auto"]
