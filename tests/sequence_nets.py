"""Ordinary networks over whole sequences of STEPS steps, as people write them in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STEPS, FEATURES, HIDDEN, CLASSES, ANSWER = 5, 4, 6, 3, 3


class Sequences(nn.Module):
    """Convolution over time or nothing, a recurrent layer, what pools its steps, a Linear.

    layer: of nn; before: conv or causal; pool: mean, max, attention, flat, or "" for every step
    """

    def __init__(
        self, layer: Callable[..., Any], before: str = "", pool: str = "", both: bool = False
    ) -> None:
        super().__init__()
        self.before, self.pool = before, pool
        self.conv = nn.Conv1d(FEATURES, FEATURES, 3, padding=int(before == "conv"))
        self.layer = layer(FEATURES, HIDDEN, batch_first=True, bidirectional=both)
        wide = HIDDEN * (1 + both)
        self.score = nn.Linear(wide, 1)
        self.out = nn.Linear(wide * (STEPS if pool == "flat" else 1), CLASSES)

    def forward(self, x: Tensor) -> Any:
        """The answers of every step, or of the sequence."""
        if self.before:
            x = x.transpose(1, 2)
            if self.before == "causal":
                x = nn.functional.pad(x, (2, 0))
            x = torch.relu(self.conv(x)).transpose(1, 2)
        y = self.layer(x)[0]
        if self.pool == "mean":
            y = y.mean(1)
        elif self.pool == "max":
            y = y.max(1).values
        elif self.pool == "attention":
            y = (torch.softmax(self.score(y), 1) * y).sum(1)
        elif self.pool == "flat":
            y = y.flatten(1)
        return self.out(y)


class Autoencoder(nn.Module):
    """The last step of an encoder, given to every step of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(FEATURES, HIDDEN, batch_first=True)
        self.decoder = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, FEATURES)

    def forward(self, x: Tensor) -> Any:
        """The sequence again."""
        last = self.encoder(x)[0][:, -1:]
        return self.out(self.decoder(last.expand(-1, STEPS, -1))[0])


class Seq2Seq(nn.Module):
    """A decoder that begins with the states of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(FEATURES, HIDDEN, batch_first=True)
        self.decoder = nn.LSTM(CLASSES, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, before: Tensor) -> Any:
        """The answer of every step of `before`, [1, ANSWER, CLASSES]."""
        return self.out(self.decoder(before, self.encoder(x)[1])[0])


class Packed(nn.Module):
    """Sequences with lengths of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.LSTM(FEATURES, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        """The answers of every step."""
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.out(y)


class CellLoop(nn.Module):
    """An LSTMCell in a loop over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTMCell(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Any:
        """The answers of every step."""
        h = c = x.new_zeros(len(x), HIDDEN)
        found = []
        for t in range(STEPS):
            h, c = self.cell(x[:, t], (h, c))
            found.append(h)
        return self.out(torch.stack(found, 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "bidirectional LSTM": lambda: Sequences(nn.LSTM, both=True),
    "bidirectional GRU": lambda: Sequences(nn.GRU, both=True),
    "CRNN": lambda: Sequences(nn.GRU, "conv", "mean"),
    "Conv1d same": lambda: Sequences(nn.LSTM, "conv"),
    "Conv1d causal": lambda: Sequences(nn.LSTM, "causal"),
    "mean over time": lambda: Sequences(nn.RNN, pool="mean"),
    "max over time": lambda: Sequences(nn.LSTM, pool="max"),
    "attention over time": lambda: Sequences(nn.LSTM, pool="attention"),
    "Flatten-Dense": lambda: Sequences(nn.LSTM, pool="flat"),
    "autoencoder": Autoencoder,
    "seq2seq": Seq2Seq,
    "LSTMCell loop": CellLoop,
}
"""Those that quantize over whole sequences by themselves."""
