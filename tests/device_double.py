"""A device that is none: its tensors lie on the CPU, but meet only each other.

A tensor moved to `DEVICE`, or made there, is a `Remote`. As on a GPU, an operation that mixes it
with a CPU tensor of one or more dimensions fails, and so does NumPy. The device type is that of
torch's lazy tensors: autograd runs it in the caller's thread, and no build needs hardware for it.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy", 0)
ATEN = torch.ops.aten
BETWEEN = (ATEN.copy_.default, ATEN._to_copy.default)  # may read one device and write another


class Remote(torch.Tensor):
    """A tensor on `DEVICE`; `local` holds its elements."""

    @staticmethod
    def __new__(cls, local):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            local.size(),
            strides=local.stride(),
            storage_offset=local.storage_offset(),
            dtype=local.dtype,
            device=DEVICE,
        )
        tensor.local = local
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self):
        return self.local.tolist()

    def untyped_storage(self):
        return self.local.untyped_storage()

    def __deepcopy__(self, memo):
        return Remote(self.local.clone())

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func not in BETWEEN and any(t.dim() and not isinstance(t, Remote) for t in tensors):
            found = ", ".join(f"{t.device.type} {tuple(t.shape)}" for t in tensors)
            raise RuntimeError(f"expected all tensors of {func} on one device, found {found}")
        back = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
        result = on_cpu(func, args, kwargs)
        if func is ATEN._local_scalar_dense.default or back:
            return result
        if func._schema.is_mutable:
            return args[0]
        return tree_map(wrap, result)


def wrap(value):
    return Remote(value) if isinstance(value, torch.Tensor) else value


def on_cpu(func, args, kwargs):
    """A function of the elements; copied where its arguments say that it copies."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    args, kwargs = tree_map(lambda v: v.local if isinstance(v, Remote) else v, (args, kwargs))
    return func(*args, **kwargs)


class Attached(TorchDispatchMode):
    """Inside a with block, in this thread, tensors can be made on `DEVICE` and moved there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_remote(kwargs.get("device")):
            return wrap(on_cpu(func, args, kwargs))
        return func(*args, **kwargs)


def is_remote(place):
    return place is not None and torch.device(place).type == DEVICE.type


_tensor = torch.tensor


def tensor(*args, **kwargs):
    """torch.tensor, which asks no dispatch mode; tests put this in its place."""
    place = kwargs.get("device")
    made = _tensor(*args, **({**kwargs, "device": "cpu"} if is_remote(place) else kwargs))
    return made.to(DEVICE) if is_remote(place) else made
