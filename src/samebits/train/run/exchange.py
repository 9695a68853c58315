"""Exchange between the workers of a step: gradients, batch-norm statistics, losses.

Gradients go in buckets as soon as the backward pass of a worker's last shard has left them, while
it computes the next ones. A bucket's sum is that of `resolve` (training.md 1.3 and 8), whatever
the number of workers:

1. the largest exponent of every parameter's parts: element-wise maximum over the workers;
2. every worker aligns its parts to it, sums them exactly, and sends each worker its slice;
3. each worker sums its slice exactly; the largest magnitude of every parameter: maximum again;
4. each worker shortens its slice to bfp32 codes, and sends them to all.

Why no bit depends on the number of workers. Only two things are rounded, a part to the common
exponent and the total to 32 bits, and both exponents are maxima over all workers; between them are
sums of integers, which may be taken in any order and grouping. For example the parts 300 * 2**-2
and 5 * 2**0 of one element on two workers: the largest exponent is 0, so the workers hold
rne(300 / 4) = 75 and 5, and the total is 80 * 2**0, as it would be on one.

Steps 2 and 4 each send what half a ring all-reduce of int32 sends, (size - 1) / size * 4 bytes an
element. A sum of k parts has up to 31 + log2(k) bits and a sign: where a worker has k > 1 parts,
step 2 adds log2(k) bits an element, packed. With 16-bit gradients (`resolve_short`) parts and total
are bfp16, and half of that is sent. Sums in two halves: R. Thakur, R. Rabenseifner, W.
Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samebits import kernels
from samebits.kernels.geometry import requantize_shift, shorten_shift
from samebits.kernels.protocol import CODE_TYPE, Part
from samebits.spec import formats
from samebits.train.deferred import ShardUpdate
from samebits.train.run.distributed import Workers
from samebits.train.sums import requantized
from samebits.train.tensor import BFPParameter, BFPTensor

BUCKET = 1 << 16  # elements from which a bucket is closed: 256 KiB
GRANULE = 8  # slices are multiples of it, so that bits pack into whole bytes
ABSENT, ZERO = -(1 << 40), -(1 << 39)  # "exponents" of no gradient and of all zeros


@dataclass
class Bucket:
    """Parameters whose gradients travel together, in memory order, and how far they are."""

    parameters: list[BFPParameter]
    missing: int = 0  # shards' gradients still to come
    sums: Future[list[Part | None]] | None = None


class Exchange:
    """The gradient sums of one model over all workers, each computing `shards` of a step's.

    bits: of a gradient, 32 (`resolve`) or 16 (`resolve_short`; training.md 1.3).
    `start` before the backward passes of a step, `finish` after them.
    """

    def __init__(self, model: nn.Module, workers: Workers, shards: int, bits: int = 32) -> None:
        self._workers, self._shards, self._bits = workers, shards, bits
        parameters = [p for p in model.parameters() if isinstance(p, BFPParameter)]
        self._buckets = _buckets([p for p in parameters if p.requires_grad])
        self._launched = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _, bucket=bucket: self._arrived(bucket)
                )
        self.start()

    def start(self) -> None:
        """Expect the gradients of every parameter from each of this worker's shards."""
        self._launched = 0
        for bucket in self._buckets:
            bucket.missing, bucket.sums = self._shards * len(bucket.parameters), None

    def finish(self, losses: list[float], updates: list[ShardUpdate]) -> list[float]:
        """Give every parameter its gradient over all shards, and batch norms their statistics.

        losses: of this worker's shards. updates: theirs, in order. Returns the losses of all
        shards, in shard order.
        """
        while self._launched < len(self._buckets):  # a parameter that took no part
            self._launch()
        everything = self._exchanged(losses, updates)
        for bucket in self._buckets:
            assert bucket.sums is not None
            for parameter, part in zip(bucket.parameters, bucket.sums.result(), strict=True):
                parameter.grad = None if part is None else BFPTensor(*part)
        return everything

    def _arrived(self, bucket: Bucket) -> None:
        """A parameter of the bucket has its gradient of one more shard."""
        bucket.missing -= 1
        # In order of the buckets, so that all workers exchange the same one.
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._launch()

    def _launch(self) -> None:
        bucket = self._buckets[self._launched]
        self._launched += 1
        parts = [() if p.grad is None else p.grad.parts for p in bucket.parameters]  # type: ignore[attr-defined]
        bucket.sums = self._workers.run(lambda: self._sum(bucket.parameters, parts))

    def _sum(
        self, parameters: list[BFPParameter], parts: list[tuple[Part, ...]]
    ) -> list[Part | None]:
        """Steps 1 to 4 for one bucket: every parameter's gradient, None where nobody has one.

        parts: this worker's, of each parameter. Elements lie in one row, cut into equal slices; a
        worker totals and shortens its own, by the largest magnitude of the whole parameter.
        """
        if self._bits == 16:
            parts = [tuple(requantized(*part, 16) for part in mine) for mine in parts]
        facts = torch.tensor([*map(_exponent, parts), max(map(len, parts))], device="cpu")
        *exponents, count = self._workers.largest(facts).tolist()
        sizes = [p.numel() for p in parameters]
        slice_ = -(-sum(sizes) // (self._workers.size * GRANULE)) * GRANULE
        dtype = torch.int64 if extra_bits(count) else torch.int32
        device = parameters[0].device
        own = torch.zeros(self._workers.size * slice_, dtype=dtype, device=device)
        position = 0
        for mine, exponent, size in zip(parts, exponents, sizes, strict=True):
            _add_aligned(own[position : position + size], mine, exponent)
            position += size
        sent = encode(own.view(self._workers.size, slice_), count, self._bits)
        total = decode(self._workers.scatter(sent), slice_, count, self._bits)
        ranges = _ranges(sizes, self._workers.rank * slice_, slice_)
        k = kernels.of(total)
        tops = torch.tensor([int(k.largest_of(total[at])) for at in ranges], device="cpu")
        largest = self._workers.largest(tops).tolist()
        codes = torch.zeros(slice_, dtype=CODE_TYPE[self._bits], device=device)
        for at, top, exponent in zip(ranges, largest, exponents, strict=True):
            if top:
                # By the largest magnitude of the whole parameter, not of this slice.
                own_sums = (total[at], top, exponent)
                rounded = k.requantize(*own_sums, 16) if self._bits == 16 else k.shorten(*own_sums)
                codes[at] = rounded[0]
        pieces = self._workers.collect(codes).view(-1)[: sum(sizes)].split(sizes)
        found = zip(parameters, pieces, exponents, largest, strict=True)
        return [None if e == ABSENT else self._part(p, piece, e, top) for p, piece, e, top in found]

    def _part(self, parameter: BFPParameter, codes: Tensor, exponent: int, top: int) -> Part:
        """The sum of a parameter's parts, in its shape."""
        shape = parameter.shape
        if len(shape) == 4:
            codes = codes.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
        if top == 0:
            return codes.view(shape), formats.EXPONENT_MIN
        shift = requantize_shift(top, exponent, 16) if self._bits == 16 else shorten_shift(top)
        return codes.view(shape), exponent + shift

    def _exchanged(self, losses: list[float], updates: list[ShardUpdate]) -> list[float]:
        """All shards' losses, once every shard's statistics are applied, in shard order.

        A worker sends one row of bytes a shard: the loss in binary64, then the updates of its
        layers' running state in the order of execution.
        """
        per_shard = len(updates) // self._shards
        own = bytearray()
        for shard, loss in enumerate(losses):
            own += struct.pack("<d", loss)
            for update in updates[shard * per_shard : (shard + 1) * per_shard]:
                own += update.to_bytes()
        rows = self._workers.gather(torch.frombuffer(own, dtype=torch.uint8))
        everything = []
        for row in rows.view(-1, len(own) // self._shards):
            data = row.numpy().tobytes()
            everything.append(struct.unpack("<d", data[:8])[0])
            data = data[8:]
            for template in updates[:per_shard]:
                update, data = template.from_bytes(data)
                update.apply()
        return everything


def _buckets(parameters: Sequence[BFPParameter]) -> list[Bucket]:
    """The last parameters first, as the backward pass leaves them."""
    buckets: list[Bucket] = []
    size = BUCKET
    for parameter in reversed(parameters):
        if size >= BUCKET:
            buckets.append(Bucket([]))
            size = 0
        buckets[-1].parameters.append(parameter)
        size += parameter.numel()
    return buckets


def _exponent(parts: tuple[Part, ...]) -> int:
    """The largest exponent of the parts that are not all zeros."""
    live = [int(exponent) for codes, exponent in parts if kernels.of(codes).largest_of(codes)]
    return max(live, default=ZERO if parts else ABSENT)


def _add_aligned(out: Tensor, parts: tuple[Part, ...], exponent: int) -> None:
    """out += sum of rne(codes * 2**(e - exponent)); an all-zero part may have any exponent."""
    for codes, e in parts:
        if exponent > ZERO:
            out += flat(kernels.of(codes).scale_to(codes, min(e - exponent, 0), 32))


def _ranges(sizes: list[int], start: int, length: int) -> list[slice]:
    """Each tensor's place inside [start, start + length) of all of them laid out in a row."""
    ranges, position = [], -start
    for size in sizes:
        low, high = max(position, 0), min(position + size, length)
        ranges.append(slice(low, max(low, high)))
        position += size
    return ranges


def flat(v: Tensor) -> Tensor:
    """A row of v's elements, image-like ones channels last (a view where they lie so)."""
    return v.permute(0, 2, 3, 1).reshape(-1) if v.dim() == 4 else v.reshape(-1)


# --- sums of k parts as codes and log2(k) more bits -------------------------------------------


def extra_bits(parts: int) -> int:
    """Number of bits beyond a code's that a sum of k = `parts` codes needs.

    k * Q32 < 2**(31 + bits), and k * Q16 < 2**(15 + bits).
    """
    return (parts - 1).bit_length() if parts else 0


def encode(rows: Tensor, parts: int, width: int) -> Tensor:
    """Sums [n, m] of `parts` codes of 16 or 32 bits as bytes [n, m * (width + extra_bits) / 8].

    The low `width` bits of every sum as they lie in memory, then each further bit as a plane of m
    bits. m is a multiple of 8.
    """
    low = rows.to(CODE_TYPE[width]).contiguous().view(torch.uint8)  # modulo 2**width
    if extra_bits(parts) == 0:
        return low
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=rows.device)
    high = (rows >> width).to(torch.int16)
    planes = [
        (((high >> bit) & 1).to(torch.uint8).view(len(rows), -1, 8) * weights).sum(2)
        for bit in range(extra_bits(parts))
    ]
    return torch.cat([low, *(plane.to(torch.uint8) for plane in planes)], dim=1)


def decode(rows: Tensor, count: int, parts: int, width: int) -> Tensor:
    """The sum over the rows of `encode`, int64 [count]; rows of bytes, of sums of `parts` codes."""
    size = count * width // 8
    low = rows[:, :size].reshape(-1).view(CODE_TYPE[width]).view(len(rows), count)
    total = low.sum(0, dtype=torch.int64)
    bits = extra_bits(parts)
    if bits:
        planes = rows[:, size:].view(len(rows), bits, -1, 1)
        places = torch.arange(8, dtype=torch.uint8, device=rows.device)
        ones = ((planes >> places) & 1).flatten(2)
        weights = 1 << torch.arange(bits, device=rows.device)
        weights[-1] = -weights[-1]  # of the sign
        high = (ones.sum(0, dtype=torch.int64) * weights.view(-1, 1)).sum(0)
        # The low bits are those of two's complement: a negative one stands for 2**width more.
        total = total + ((high + (low < 0).sum(0)) << width)
    return total
