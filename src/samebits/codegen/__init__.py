"""Integer graphs as C99: kernel calls, one static arena, constant tables, no floating point."""

from samebits.codegen.packaging.package import PackageReport, write_package

__all__ = ["PackageReport", "write_package"]
