"""Graphs of ggml over memory that torch owns: a graph's tensors lie one behind the other in an arena.

What goes in and comes out lies at places that all graphs over an arena agree on, and torch reads and writes
it there. It knows ggml's tensors and where they lie, and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p, create_string_buffer
from typing import Any

import torch
from torch import Tensor

from engine.ggml.kinds import FLOAT32
from engine.ggml.library import THREADPOOL_PARAMS_BYTES, library
from engine.model.preflight import ModelError

ALIGNMENT = 64  # bytes
ALL_THREADS = -1


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Memory:
    """Bytes of torch's that ggml's tensors can be laid into. Whoever lays them keeps it."""

    def __init__(self, held: Tensor) -> None:
        self.held = held
        self._address = held.data_ptr()
        assert self._address % ALIGNMENT == 0, "torch aligns what it allocates"
        self._buffer = library().backend_cpu_buffer_from_ptr(self._address, max(ALIGNMENT, held.nbytes))

    def __del__(self) -> None:
        if hasattr(self, "_buffer"):
            library().backend_buffer_free(self._buffer)

    def lay(self, tensor: int, offset: int = 0) -> int:
        """How many bytes it takes there."""
        size: int = library().nbytes(tensor)
        assert offset + size <= self.held.nbytes, "it is as large as the largest graph needs"
        library().backend_tensor_alloc(self._buffer, tensor, self._address + offset)
        return size


Place = tuple[Memory, int]  # where in it a tensor is to lie


class Backend:
    """The threads that compute graphs: as many as torch has."""

    def __init__(self) -> None:
        ggml, threads = library(), torch.get_num_threads()
        self._backend = ggml.backend_cpu_init()
        params = create_string_buffer(THREADPOOL_PARAMS_BYTES)
        ggml.threadpool_params_init(params, threads)
        # Kept between graphs where ggml does not compute in OpenMP's: to start some takes as long as a layer.
        self._threads = ggml.threadpool_new(params)
        ggml.backend_cpu_set_n_threads(self._backend, threads)
        ggml.backend_cpu_set_threadpool(self._backend, self._threads)

    def compute(self, graph: Graph) -> None:
        if status := library().backend_graph_compute(self._backend, graph.nodes):
            raise RuntimeError(f"ggml could not compute a graph: its status is {status}")

    def __del__(self) -> None:
        if hasattr(self, "_threads"):
            library().threadpool_free(self._threads)


class Graph:
    """Its operators are methods, by ggml's names for them. What they give lies in `scratch` from `first` on,
    one behind the other, unless it is laid elsewhere or is a view."""

    def __init__(self, scratch: Memory, first: int, tensors: int) -> None:
        """Of so many tensors at most."""
        ggml = library()
        self._scratch, self._first, self._next = scratch, first, first
        self._kept: list[Memory | Tensor] = []
        self._context = ggml.context(tensors, tensors)
        if not self._context:
            raise ModelError("there is not enough memory for a graph")
        self.nodes = ggml.new_graph_custom(self._context, tensors, False)

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            library().free(self._context)

    def over(self, memory: Memory, rows: int, columns: int, kind: int = FLOAT32, *, offset: int = 0) -> int:
        """A tensor of what lies there already."""
        tensor: int = library().new_tensor_2d(self._context, kind, columns, rows)
        memory.lay(tensor, offset)
        self._kept.append(memory)
        return tensor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(library(), name)

        def operator(*arguments: Any, into: Place | None = None) -> int:
            tensor: int = function(self._context, *arguments)
            if name.startswith("view_") or name.endswith("_inplace"):
                library().backend_view_init(tensor)
            else:
                self._lay(tensor, into)
            return tensor

        return operator

    def custom(
        self,
        function: int,
        size: tuple[int, int],
        sources: Sequence[int],
        *numbers: int,
        into: Place | None = None,
    ) -> int:
        """Rows and columns that a function of ours computes, in all threads. It is told the addresses of what
        it gives and of its sources, and then the numbers."""
        ggml, (rows, columns), count = library(), size, len(sources)
        told = torch.tensor([0] * (1 + count) + list(numbers))
        self._kept.append(told)
        tensor: int = ggml.custom_4d(
            *(self._context, FLOAT32, columns, rows, 1, 1),
            *((c_void_p * count)(*sources), count, function, ALL_THREADS, told.data_ptr()),
        )
        self._lay(tensor, into)
        told[: 1 + count] = torch.tensor([ggml.get_data(one) for one in (tensor, *sources)])
        return tensor

    def _lay(self, tensor: int, into: Place | None) -> None:
        if into is None:
            self._next += aligned(self._scratch.lay(tensor, self._next))
        else:
            memory, offset = into
            memory.lay(tensor, offset)
            self._kept.append(memory)

    def reuse_scratch(self) -> None:
        """What lies there is needed no longer."""
        self._next = self._first

    def finish(self, tensor: int) -> None:
        """It, and all that it is computed from, is computed."""
        library().build_forward_expand(self.nodes, tensor)
