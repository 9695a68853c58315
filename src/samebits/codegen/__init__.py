"""Integer graphs as C99: kernel calls, one static arena, constant tables, no floating point."""

from samebits.codegen.packaging.package import Report, write_package

__all__ = ["Report", "write_package"]
