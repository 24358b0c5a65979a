"""The sandbox of chat templates: Jinja's sandbox, in which a template's work is counted and has a limit.
Pure.

A template is the model's code, and runs over what strangers write: it may loop for ever, and a thread cannot
be stopped from outside. So everything that can be repeated, or can grow, asks the budget first: turns of
loops, calls, filters, operators that make long values of short ones, and output.

What is counted is work and not time: whether a conversation can be rendered follows from the conversation
alone, and not from who else keeps the machine busy. This knows no message, no model and no token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# What is done costs, beside the sizes that it handles, in characters: a turn or an operator, and a call.
STEP, CALL = 32, 256
MULTIPLIED_BITS = 1024  # the product of two numbers' lengths that costs as much as a character
_TURNS, _OUTPUT = "_metered_turns", "_metered_output"  # filters that only a parsed template can be given

_budget: ContextVar[Budget] = ContextVar("budget")


class BudgetSpentError(Exception):
    """The template would do more than it may."""


class Budget:
    """How much one rendering may do, in characters' worth."""

    def __init__(self, units: int) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise BudgetSpentError

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What templates do in here, in this thread, is paid from this."""
        token = _budget.set(self)
        try:
            yield
        finally:
            _budget.reset(token)


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Its templates are compiled and rendered within `Budget.spending()`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self, extensions: list[type[jinja2.ext.Extension]], filters: Mapping[str, Callable[..., Any]]
    ) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        del self.globals["lipsum"]  # as much text as it is asked for
        self.filters = {name: _metered(function) for name, function in {**self.filters, **filters}.items()}
        self.filters |= {_TURNS: _turns, _OUTPUT: _output}

    def metered_template(self, source: str) -> jinja2.Template:
        tree: nodes.Template = _Metering().visit(self.parse(source))
        return self.from_string(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        budget.spend(STEP + _growth(operator, left, right))
        result = super().call_binop(context, operator, left, right)
        budget.spend(_size(result))
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, LoopContext):  # one that is recursive, and enters itself
            args = tuple(map(_counted, args))
        subject = _size(getattr(function, "__self__", None))
        return _paid(subject, functools.partial(super().call, context, function), args, kwargs)


class _Metering(NodeTransformer):
    """Puts the counting filters into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's naming
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _TURNS)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        literal = nodes.TemplateData | nodes.Const
        node.nodes = [part if isinstance(part, literal) else _filtered(part, _OUTPUT) for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`~` calls nothing that could be counted; the filter `join` does the same."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno, environment=node.environment), "join")


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


@jinja2.pass_context  # so it is never computed ahead, when the template is compiled
def _turns(context: Context, iterable: Iterable[Any]) -> Iterator[Any]:
    return _counted(iterable)


def _counted(iterable: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in iterable:
        budget.spend(STEP)
        yield item


@jinja2.pass_context
def _output(context: Context, value: Any) -> Any:
    _budget.get().spend(STEP + _size(value))
    return value


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context, or another thing of Jinja's

    @functools.wraps(function)  # Jinja's marks too
    def metered(*args: Any, **kwargs: Any) -> Any:
        subject, args = args[: passed + 1], args[passed + 1 :]
        return _paid(sum(map(_size, subject)), functools.partial(function, *subject), args, kwargs)

    return metered


def _paid(subject: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call it: paid are what it is called on and with, and then what it gives."""
    budget = _budget.get()
    budget.spend(CALL + subject + sum(map(_cost, (*args, *kwargs.values()))))
    result = function(*args, **kwargs)
    budget.spend(_size(result))
    return _counted(result) if isinstance(result, Iterator) else result


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length() // 8
    return len(value) if isinstance(value, str | bytes | list | tuple | dict | range) else 0


def _cost(argument: Any) -> int:
    """A number may be a width, or a count."""
    return abs(argument) if isinstance(argument, int) else _size(argument)


def _growth(operator: str, left: Any, right: Any) -> int:
    """What an operator costs that can make much more than it is given."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        return (left.bit_length() * abs(right)) ** 2 // MULTIPLIED_BITS
    if operator == "*" and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right.bit_length() // MULTIPLIED_BITS
    return _cost(left) * _cost(right) if operator == "*" else 0
