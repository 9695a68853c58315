"""Spans of a recording of memory."""

import torch

from samebits.recompute.run.memory import recording


def test_spans_come_in_the_order_of_their_starts():
    with recording() as record:
        with record.span("z outer"):
            with record.span("a inner"):
                a = torch.ones(1000)
            b = a.neg()
        with record.span("m after"):
            del a
    assert [span.label for span in record.spans] == ["z outer", "a inner", "m after"]
    assert [(span.start, span.end) for span in record.spans] == [
        *((0, 8000), (0, 4000), (8000, 4000))
    ]
    assert b.numel() == 1000
