"""Triton's interpreter, as it is but for what it looks up again and again.

At each launch and each call within a kernel it goes through all that `triton.language` has, to find what it
replaces, and at each operation it writes down the table of all types of numbers. Neither changes, and both
take it a third of its time.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any


def look_up_once() -> None:
    from triton.language.core import is_builtin
    from triton.runtime import interpreter

    np_dtype_of, np_dtypes = interpreter._get_np_dtype, dict[str, Any]()

    @cache
    def builtins_of(package: Any) -> list[str]:
        """Seen first when none of them was replaced."""
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in builtins_of(package):
            member = getattr(package, name)
            if is_builtin(member):  # it is not while it is replaced
                interpreter._patch_attr(package, name, member, builder, scope)

    def get_np_dtype(dtype: Any) -> Any:
        found = np_dtypes.get(dtype.name)
        if found is None:
            found = np_dtypes[dtype.name] = np_dtype_of(dtype)
        return found

    interpreter._patch_builtin = patch_builtin
    interpreter._get_np_dtype = get_np_dtype
