"""The binding of ggml: those of its C functions that we call, out of the package xllamacpp.

The package carries llama.cpp whole in one shared object, whose symbols are visible. Only functions of
pointers and numbers are declared here, and the one struct by which a context is made: what ggml keeps in its
own structs is its own business, and may change.

It knows names and types of functions, and nothing of what they are called for.
"""

from __future__ import annotations

import ctypes
import platform
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch  # loaded before ggml: then both compute in the threads of one OpenMP

PACKAGE = "xllamacpp"
THREADPOOL_PARAMS_BYTES = 4096  # more than they take: ggml fills them in itself
POINTER, NUMBER, COUNT, REAL = c_void_p, c_int, c_int64, c_float

FUNCTIONS: dict[str, tuple[Any, ...]] = {  # what it gives, then what it takes
    "ggml_free": (None, POINTER),
    "ggml_tensor_overhead": (c_size_t,),
    "ggml_graph_overhead_custom": (c_size_t, c_size_t, c_bool),
    "ggml_nbytes": (c_size_t, POINTER),
    "ggml_row_size": (c_size_t, NUMBER, COUNT),
    "ggml_blck_size": (COUNT, NUMBER),
    "ggml_type_name": (c_char_p, NUMBER),
    "ggml_new_tensor_2d": (POINTER, POINTER, NUMBER, COUNT, COUNT),
    "ggml_view_2d": (POINTER, POINTER, POINTER, COUNT, COUNT, c_size_t, c_size_t),
    "ggml_view_3d": (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, c_size_t, c_size_t, c_size_t),
    "ggml_get_rows": (POINTER, POINTER, POINTER, POINTER),
    "ggml_custom_4d": (
        *(POINTER, POINTER, NUMBER, COUNT, COUNT, COUNT, COUNT),
        *(POINTER, NUMBER, POINTER, NUMBER, POINTER),
    ),
    "ggml_get_data": (POINTER, POINTER),
    "ggml_mul_mat": (POINTER, POINTER, POINTER, POINTER),
    "ggml_rms_norm": (POINTER, POINTER, POINTER, REAL),
    "ggml_rms_norm_inplace": (POINTER, POINTER, POINTER, REAL),
    "ggml_mul_inplace": (POINTER, POINTER, POINTER, POINTER),
    "ggml_add_inplace": (POINTER, POINTER, POINTER, POINTER),
    "ggml_swiglu": (POINTER, POINTER, POINTER),
    "ggml_swiglu_split": (POINTER, POINTER, POINTER, POINTER),
    "ggml_rope_ext_inplace": (
        *(POINTER, POINTER, POINTER, POINTER, POINTER),
        *(NUMBER, NUMBER, NUMBER, REAL, REAL, REAL, REAL, REAL, REAL),
    ),
    "ggml_new_graph_custom": (POINTER, POINTER, c_size_t, c_bool),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_quantize_chunk": (c_size_t, NUMBER, POINTER, POINTER, COUNT, COUNT, COUNT, POINTER),
    "ggml_threadpool_params_init": (None, POINTER, NUMBER),
    "ggml_threadpool_new": (POINTER, POINTER),
    "ggml_threadpool_free": (None, POINTER),
    "ggml_backend_cpu_init": (POINTER,),
    "ggml_backend_cpu_set_n_threads": (None, POINTER, NUMBER),
    "ggml_backend_cpu_set_threadpool": (None, POINTER, POINTER),
    "ggml_backend_cpu_buffer_from_ptr": (POINTER, POINTER, c_size_t),
    "ggml_backend_tensor_alloc": (NUMBER, POINTER, POINTER, POINTER),
    "ggml_backend_view_init": (NUMBER, POINTER),
    "ggml_backend_buffer_free": (None, POINTER),
    "ggml_backend_graph_compute": (NUMBER, POINTER, POINTER),
    "ggml_version": (c_char_p,),
}


class _ContextParams(ctypes.Structure):
    _fields_ = (("bytes", c_size_t), ("memory", c_void_p), ("no_alloc", c_bool))


class Library:
    """ggml's functions as attributes, by their names without what they all begin with."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self._init = loaded.ggml_init
        self._init.restype, self._init.argtypes = POINTER, [_ContextParams]
        self.description = f"ggml {self.version().decode()} of {PACKAGE} {version(PACKAGE)}"

    def __getattr__(self, name: str) -> Any:  # for whoever checks types: all of them stand in FUNCTIONS
        raise AttributeError(f"ggml's {name} is not declared")

    def context(self, tensors: int, nodes: int = 0) -> int:
        """Room for so many tensors' descriptions, and those of a graph of so many nodes; no numbers."""
        graph = self.graph_overhead_custom(nodes, False) if nodes else 0
        made: int = self._init(_ContextParams(tensors * self.tensor_overhead() + graph, None, True))
        return made


def why_not() -> str | None:
    """Why it cannot be used here, if so."""
    if platform.machine() == "x86_64" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return f"the package {PACKAGE} is built for AVX2, which this processor does not have"
    try:
        library()
    except (OSError, AttributeError, ImportError) as error:
        return str(error)
    return None


@cache
def library() -> Library:
    """Raises where it is not there, or not the one that we know."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package {PACKAGE} is not installed")
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(path for path in folder.glob(f"{PACKAGE}*") if path.suffix in (".so", ".pyd", ".dylib"))
    if not found:
        raise ImportError(f"the package {PACKAGE} holds no shared object")
    return Library(found[0])
