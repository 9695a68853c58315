"""Recurrent layers: stacks of LSTM, GRU and RNN layers, and their cells as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from samebits.errors import UnsupportedError
from samebits.train.layers.absent import Absent
from samebits.train.layers.base import Layer
from samebits.train.layers.elementwise import Dropout
from samebits.train.operation import TrainingOperation, is_interpreted
from samebits.train.operations import pointwise
from samebits.train.operations.broadcast import constant
from samebits.train.operations.gru import GRU as GRU_LAYER
from samebits.train.operations.gru import GruCell
from samebits.train.operations.indexing import indexed, transpose
from samebits.train.operations.lstm import LSTM as LSTM_LAYER
from samebits.train.operations.lstm import LstmCell
from samebits.train.operations.narrow import as_bfp8, as_decided
from samebits.train.operations.recurrence import SteppedCell, layer
from samebits.train.operations.recurrent import refuse_packed, states
from samebits.train.operations.rnn import RNN as RNN_LAYER
from samebits.train.operations.rnn import RnnCell
from samebits.train.tensor import BFPParameter, BFPTensor

Given = list[BFPTensor]
Own = tuple[Any, Any, Any, Any]  # parameters, in the order of PARTS
PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _inside(where: str) -> Absent:
    """In the place of a cell state, which deployed arithmetic does not give."""
    return Absent(
        f"{where}: expected a model that reads the hidden states in deployed arithmetic, found one "
        "that reads the cell state; evaluate it in the training arithmetic"
    )


class RecurrentBase(Layer):
    """Base: parameters as torch names them, and states, h and for an LSTM c."""

    STATES: tuple[str, ...] = ("h_0",)
    EXACT = True  # whether h_0 keeps more than 8 bits
    FIRST = ""  # what follows the names of a first layer's parameters

    def __init__(self, parameters: dict[str, BFPParameter]) -> None:
        super().__init__()
        self.hold(**parameters)

    @property
    def input_size(self) -> int:
        """Number of features of an input."""
        return self.get_parameter(f"weight_ih{self.FIRST}").shape[1]

    @property
    def hidden_size(self) -> int:
        """Number of units."""
        return self.get_parameter(f"weight_hh{self.FIRST}").shape[1]

    @property
    def kind(self) -> tuple[TrainingOperation, SteppedCell]:
        """The operation of its layers, and its cell; every kind defines it."""
        raise TypeError(f"{type(self).__name__} defines no kind")

    def compute_layer(
        self, x: BFPTensor, own: Own, reverse: bool, given: Given
    ) -> tuple[BFPTensor, BFPTensor | None]:
        """One layer in one direction: its output, and its last state, which deployed arithmetic
        does not give."""
        result = layer(*self.kind, x, *own, reverse, given)
        return (result, None) if isinstance(result, BFPTensor) else result

    def given(self, where: str, state: Any, x: BFPTensor, shape: tuple[int, ...]) -> Given:
        """Initial states; none: []. Constants are quantized as real inputs are.

        Raises UnsupportedError for other shapes and types, and in deployed arithmetic.
        """
        if state is None:
            return []
        found = [state] if len(self.STATES) == 1 else state
        what = " and ".join(self.STATES)
        if is_interpreted():
            raise UnsupportedError(
                f"{where}: expected no initial state in deployed arithmetic, where states start at "
                "zero, found one; leave it out, or evaluate the model in the training arithmetic"
            )
        fits = isinstance(found, tuple | list) and len(found) == len(self.STATES)
        if not fits or not all(isinstance(s, Tensor) for s in found):
            raise UnsupportedError(
                f"{where}: expected {what} as initial state, found {state!r:.80}"
            )
        taken = []
        for index, (name, s) in enumerate(zip(self.STATES, found, strict=True)):
            if tuple(s.shape) != shape:
                raise UnsupportedError(
                    f"{where}: expected {name} of shape {shape}, found {tuple(s.shape)}"
                )
            exact = self.EXACT or index > 0
            value = constant(s, x, name, exact)
            taken.append(as_decided(value, where) if exact else as_bfp8(value, where))
        return taken


class RecurrentStack(RecurrentBase):
    """Layers and directions, dropout between layers, and states, as torch has them.

    dropouts: between layers, one fewer than there are layers, or none
    """

    FIRST = "_l0"

    def __init__(
        self,
        parameters: dict[str, BFPParameter],
        num_layers: int = 1,
        bidirectional: bool = False,
        batch_first: bool = False,
        dropouts: Sequence[Dropout] = (),
    ) -> None:
        super().__init__(parameters)
        self.num_layers, self.bidirectional = num_layers, bidirectional
        self.batch_first = batch_first
        for index, dropout in enumerate(dropouts, 1):
            self.add_module(f"dropout_l{index}", dropout)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """[T, N, I] ([N, T, I] with batch_first) -> (output, last states).

        output [T, N, H] or [N, T, H] holds the hidden states of the last layer, 2H with both
        directions. States, given or last: [layers * directions, N, H], of an LSTM a pair.
        """
        with self.named() as where:
            if isinstance(input, PackedSequence):
                refuse_packed()
            x = as_bfp8(input, where)
            if x.dim() != 3:
                raise UnsupportedError(
                    f"{where}: expected a batch of sequences [3 axes], found shape {tuple(x.shape)}"
                )
            x = transpose(x, 0, 1) if self.batch_first else x
            count = self.num_layers * (2 if self.bidirectional else 1)
            y, last = self._run(x, self.given(where, hx, x, (count, x.shape[1], self.hidden_size)))
            return (transpose(y, 0, 1) if self.batch_first else y), last

    def flatten_parameters(self) -> None:
        """Nothing: torch lays weights side by side for cuDNN."""

    def _run(self, x: BFPTensor, given: Given) -> tuple[BFPTensor, Any]:
        """(output, last states) of all layers in turn; x [T, N, I]."""
        last: list[BFPTensor] = []
        memory: list[BFPTensor | None] = []
        for index in range(self.num_layers):
            if (dropout := self._modules.get(f"dropout_l{index}")) is not None:
                x = dropout(x)
            outputs = []
            for end in ("", "_reverse") if self.bidirectional else ("",):
                own: Any = tuple(self._parameters.get(f"{part}_l{index}{end}") for part in PARTS)
                before = [indexed(s, len(last)) for s in given]
                y, after = self.compute_layer(x, own, bool(end), before)
                outputs.append(y)
                memory.append(after)
                last.append(indexed(y, slice(0, 1) if end else slice(-1, None)))
            x = pointwise.concat(outputs, 2) if self.bidirectional else outputs[0]
        return x, self.last_states(last, memory)

    def last_states(self, outputs: list[BFPTensor], memory: list[BFPTensor | None]) -> Any:
        """The last states, from the last outputs [1, N, H] and states [N, H] of all layers.

        In deployed arithmetic they are the last outputs.
        """
        given = [s for s in memory if s is not None]
        return states(*given) if given else joined(outputs)

    def extra_repr(self) -> str:
        """The options, as torch prints them."""
        return (
            f"num_layers={self.num_layers}, bidirectional={self.bidirectional}, "
            f"batch_first={self.batch_first}"
        )


class RecurrentCell(RecurrentBase):
    """One step at a time, with the parameters and results of torch's LSTMCell, GRUCell, RNNCell."""

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """[N, I] -> the state after this step [N, H]; of an LSTM the pair (h, c)."""
        with self.named() as where:
            x = as_bfp8(input, where)
            if x.dim() != 2 or x.shape[1] != self.input_size or len(x) == 0:
                raise UnsupportedError(
                    f"{where}: expected a batch of at least one sample [samples, "
                    f"{self.input_size}], found shape {tuple(x.shape)}"
                )
            own: Any = tuple(self._parameters.get(part) for part in PARTS)
            shape = (x.shape[0], self.hidden_size)
            given = self.given(where, hx, x, shape)
            y, after = self.compute_layer(pointwise.reshape(x, (1, *x.shape)), own, False, given)
            return self.result(pointwise.reshape(y, shape), where, after)

    def result(self, y: BFPTensor, where: str, after: BFPTensor | None) -> Any:
        """The result of a step, from the output [N, H] and the state [N, H]."""
        return indexed(states(after), 0)  # type: ignore[arg-type]


# --- kinds ------------------------------------------------------------------------------------


def joined(outputs: list[BFPTensor]) -> BFPTensor:
    """Last outputs [1, N, H] of layers as one tensor [layers, N, H]."""
    return pointwise.concat(outputs, 0) if len(outputs) > 1 else outputs[0]


class OfLSTM(RecurrentBase):
    """Layers whose cell is that of an LSTM."""

    STATES = ("h_0", "c_0")
    EXACT = False

    @property
    def kind(self) -> tuple[TrainingOperation, SteppedCell]:
        return LSTM_LAYER, LstmCell()


class OfGRU(RecurrentBase):
    """Layers whose cell is that of a GRU."""

    @property
    def kind(self) -> tuple[TrainingOperation, SteppedCell]:
        return GRU_LAYER, GruCell()


class OfRNN(RecurrentBase):
    """Layers whose cell is tanh, or relu, of one sum."""

    relu = False

    @property
    def kind(self) -> tuple[TrainingOperation, SteppedCell]:
        return RNN_LAYER, RnnCell(self.relu)

    def extra_repr(self) -> str:
        """The options, as torch prints them, and the function."""
        own = super().extra_repr()
        function = f"nonlinearity={'relu' if self.relu else 'tanh'}"
        return f"{own}, {function}" if own else function


class LSTM(OfLSTM, RecurrentStack):
    """A stack of LSTM layers with the parameters, arguments and results of torch.nn.LSTM."""

    def last_states(self, outputs: list[BFPTensor], memory: list[BFPTensor | None]) -> Any:
        h = joined(outputs)
        if any(c is None for c in memory):
            return h, _inside(f"layer {self.name!r} (LSTM)")
        return h, super().last_states(outputs, memory)


class GRU(OfGRU, RecurrentStack):
    """A stack of GRU layers with the parameters, arguments and results of torch.nn.GRU."""


class RNN(OfRNN, RecurrentStack):
    """A stack of RNN layers with the parameters, arguments and results of torch.nn.RNN."""


class LSTMCell(OfLSTM, RecurrentCell):
    """torch.nn.LSTMCell."""

    def result(self, y: BFPTensor, where: str, after: BFPTensor | None) -> Any:
        return y, _inside(where) if after is None else super().result(y, where, after)


class GRUCell(OfGRU, RecurrentCell):
    """torch.nn.GRUCell."""


class RNNCell(OfRNN, RecurrentCell):
    """torch.nn.RNNCell."""
