"""Functions of single codes: a table of every code, or fewer bytes that give the same codes."""

from __future__ import annotations

from samebits.codegen.lowering.calls import Array, Data, ValueCalls
from samebits.codegen.lowering.rescale import TYPES
from samebits.codegen.lowering.site import Site
from samebits.tables.cubic import ENTRIES, Cubic, fit_cubic
from samebits.tables.lines import Lines, fit_lines


def table_bytes(table: Array) -> int:
    """Flash that a table takes, or the form in its place."""
    found = _shorter(table)
    return table.nbytes if found is None else found.bytes


def _shorter(table: Array, draft: bool = False) -> Lines | Cubic | None:
    """Straight lines or piecewise cubics in place of 65,536 entries. A draft has no cubics, whose
    fit takes seconds."""
    if table.shape != (ENTRIES,):
        return None
    return fit_lines(table) or (None if draft else fit_cubic(table))


def table_entry(site: Site) -> ValueCalls:
    """A table of 256 or 65,536 entries, or rows of them by channel; lines or cubics in place of
    65,536 where they give the same codes."""
    x, table = site.input(0), site.required(1)
    types = {"type": TYPES[x.dtype], "out_type": TYPES[table.dtype.name]}
    found = _shorter(table, site.context.draft)
    if isinstance(found, Lines):
        fields = {
            "size": x.size,
            "heights": Data(found.heights),
            "last": len(found.heights) - 1,
            "mirror": found.mirror or 0,
            "mirrored": int(found.mirror is not None),
            **{key: getattr(found, key) for key in ("factor", "offset", "top")},
            **{key: getattr(found, key) for key in ("left", "bits", "shift")},
        }
        return site.entry(site.call("lines", "lines", {**fields, **types}), in_place=[x.name])
    if found is not None:
        fields = {
            "size": x.size,
            "coefficients": Data(found.coefficients.T.reshape(-1)),
            "segments": len(found.coefficients),
            "low": found.low,
            "high": found.high,
            "mirror": found.mirror or 0,
            "mirrored": int(found.mirror is not None),
            "bits": found.bits,
            **{f"shift{degree}": shift for degree, shift in enumerate(found.shifts)},
            "narrow": int(found.narrow),
        }
        return site.entry(site.call("cubic", "cubic", {**fields, **types}), in_place=[x.name])
    fields = {
        "size": x.size,
        "channels": len(table) if table.ndim == 2 else 1,
        "table": Data(table.reshape(-1)),
    }
    return site.entry(site.call("table", "table", {**fields, **types}), in_place=[x.name])
