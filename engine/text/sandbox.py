"""Runs a chat template that came out of a model file: jinja2, sandboxed and bounded. Knows no tokens.

A template is a program by a stranger. jinja2's immutable sandbox keeps it from Python's insides; what is added here keeps it
from running for ever or filling the memory: loops, calls, and filters draw on one budget of steps per rendering, values and
output have a largest size, and padding or repeating by huge numbers is refused. There is no loader, so nothing can be included.

The dialect is the one that the templates of Hugging Face models are written in: trim_blocks, lstrip_blocks, `break` and
`continue`, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, and `{% generation %}` blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engine.errors import EngineError

MAX_SOURCE_CHARS = 512 * 1024
MAX_STEPS = 100_000
# Steps that every message adds: templates walk over the conversation a few times.
STEPS_PER_MESSAGE = 1_000
MAX_VALUE_CHARS = 16 * 1024 * 1024
MAX_NUMBER = 100_000
MAX_INDENT = 64
# Texts that are replaced, joined, indented or wrapped: length times argument, which no honest template comes near.
MAX_PRODUCT = 256 * 1024 * 1024
_MULTIPLIERS = frozenset({"replace", "join", "expandtabs", "indent", "wordwrap"})
_REFUSED_METHODS = frozenset({"translate"})
_ITEM_CHARS = 32
_SMALL_ITEMS, _MAX_WALKED = 64, 32
_END = object()
_HUGE_WIDTH = re.compile(r"\d{5,}|\*")
# What a template can raise: its own complaint, a mistake of its author, or one of our bounds.
_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


class TemplateFault(EngineError):
    """The chat template cannot be compiled, or refuses this conversation."""


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks what a trainer learns from; for us its body is plain output."""

    tags = {"generation"}  # noqa: RUF012 - the base class's type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with a budget; used by one thread at a time."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=self._weighed,
        )
        self.steps_left = 0
        # By id; what is in it is kept alive, so that no other value can have the id. Lists cannot change in this sandbox.
        self._walked: dict[int, tuple[Any, int]] = {}
        self.filters.update(
            tojson=_to_json,
            counted_=self._counted,
            weighed_=self._weighed,
            small_=self._light,
            product_=_check_product,
            tame_=_tame,
        )

    def forget_walked(self) -> None:
        """Before a rendering: the values of the last one are gone."""
        self._walked.clear()

    def spend(self, n_steps: int) -> None:
        self.steps_left -= n_steps
        if self.steps_left < 0:
            _refuse("it ran for too many steps")

    # The odd names are jinja2's: a template may pass any keyword.
    def call(
        __self,  # noqa: N805
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        __self.spend(1)
        for value in (*args, *kwargs.values()):
            __self._light(value)
        _bounded_product(__obj, args, kwargs)
        return __self._weighed(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's own hook for `text.format(…)`."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _tame(value.__self__)
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `%` can make something huge in one stroke, so their operands are looked at first."""
        left, right = self._weighed(left), self._weighed(right)
        n_times = right if isinstance(right, int) else left if isinstance(left, int) else 0
        sized = left if isinstance(left, Sized) else right if isinstance(right, Sized) else None
        if operator == "%":
            _tame(left)
        elif sized is not None and len(sized) * abs(n_times) > MAX_NUMBER:
            _refuse("it repeats a text too often")
        if operator == "**" and (not isinstance(right, int) or abs(right) > 64):
            _refuse("it computes a huge power")
        return self._light(super().call_binop(context, operator, left, right))

    def _counted(self, items: Any) -> list[Any]:
        listed = list(items)
        self.spend(len(listed))
        return listed

    def _weighed(self, value: Any) -> Any:
        size = len(value) if isinstance(value, Sized) else 0
        if isinstance(value, list | tuple | dict | set | Namespace):
            size = max(size, self._n_items(value))
        if size > MAX_VALUE_CHARS:
            _refuse("it makes a value that is too large")
        self.spend(1 + size // 64)
        return value

    def _n_items(self, value: Any) -> int:
        """As below; the larger values are remembered, as a template looks at the conversation for every message of it."""
        known = self._walked.pop(id(value), None) or (value, _n_items(value))
        if known[1] > _SMALL_ITEMS:
            self._walked[id(value)] = known
            if len(self._walked) > _MAX_WALKED:
                del self._walked[next(iter(self._walked))]
        return known[1]

    def _light(self, value: Any) -> Any:
        """An argument: neither a huge number nor a huge value."""
        return _small(self._weighed(value))


class CompiledTemplate:
    """One template, ready to run; used by one thread at a time.

    `strftime_now` answers with the time at which this object was made: a prompt that changes with the clock would never
    find its KV again (people get date and time in their own turn).
    """

    def __init__(self, source: str, *, bos_text: str, eos_text: str) -> None:
        """Raises TemplateFault for a source that cannot be used."""
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateFault(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        self._environment = _BoundedEnvironment()
        loaded_at = datetime.now().astimezone()
        self._constants: Mapping[str, Any] = {
            "bos_token": bos_text,
            "eos_token": eos_text,
            "tools": None,
            "documents": None,
            "raise_exception": _refuse,
            "strftime_now": loaded_at.strftime,
        }
        try:
            tree = _Meter().visit(self._environment.parse(source))
            code = self._environment.compile(tree)
            self._template = self._environment.template_class.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except _FAULTS as error:
            raise TemplateFault(f"the chat template cannot be compiled: {error}") from error

    def render(self, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool) -> str:
        """The prompt text of (role, content) pairs. Raises TemplateFault when the template refuses them."""
        self._environment.forget_walked()
        self._environment.steps_left = MAX_STEPS + STEPS_PER_MESSAGE * len(messages)
        dicts = [{"role": role, "content": content} for role, content in messages]
        parts: list[str] = []
        n_chars = 0
        try:
            for part in self._template.generate(
                self._constants, messages=dicts, add_generation_prompt=add_generation_prompt
            ):
                n_chars += len(part)
                if n_chars > MAX_VALUE_CHARS:
                    _refuse("its output is too long")
                parts.append(part)
        except _FAULTS as error:
            raise TemplateFault(f"the chat template refuses this conversation: {error}") from error
        return "".join(parts)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _small(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        _refuse("it uses a number that is too large")
    return value


def _n_items(value: Any) -> int:
    """How many values there are in a value, those within its lists and dicts included.

    Raises TemplateError when all of it as text would have more than `MAX_VALUE_CHARS` (a list may hold one text a billion
    times without taking any room yet), and looks at no more than that takes.
    """
    inner: list[Iterator[Any]] = [iter((value,))]
    n_items = n_chars = 0
    while inner:
        item = next(inner[-1], _END)
        if item is _END:
            inner.pop()
            continue
        n_items += 1
        n_chars += len(item) if isinstance(item, str) else _ITEM_CHARS
        if n_chars > MAX_VALUE_CHARS:
            _refuse("it makes a value that is too large")
        if isinstance(item, Mapping):
            inner.append(chain(item.keys(), item.values()))
        elif isinstance(item, list | tuple | set):
            inner.append(iter(item))
        elif isinstance(item, Namespace):
            inner.append(iter(object.__getattribute__(item, "_Namespace__attrs").values()))
    return n_items


def _bounded_product(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Methods of text whose result can be as long as text times argument."""
    text = getattr(function, "__self__", None)
    if isinstance(text, str) and getattr(function, "__name__", "") in _REFUSED_METHODS:
        _refuse("str.translate is not supported")
    if isinstance(text, str) and getattr(function, "__name__", "") in _MULTIPLIERS:
        _check_product(text, *args, *kwargs.values())


def _check_product(value: Any, *args: Any, **kwargs: Any) -> Any:
    args = (*args, *kwargs.values())
    sizes = [
        arg if isinstance(arg, int) else len(arg) for arg in args if isinstance(arg, int | str)
    ]
    if isinstance(value, Sized) and len(value) * max(sizes, default=0) > MAX_PRODUCT:
        _refuse("it makes a value that is too large")
    return value


def _to_json(  # the arguments are those of Hugging Face's filter
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(indent, int) and indent > MAX_INDENT:
        _refuse("it pads a text too far")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _tame(pattern: Any) -> Any:
    if isinstance(pattern, str) and _HUGE_WIDTH.search(pattern):
        _refuse("it pads a text too far")
    return pattern


class _Meter(NodeTransformer):
    """Puts a meter at every place of a parsed template where it can spend time or memory."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if node.recursive:
            _refuse("recursive loops are not supported")
        node.iter = _filtered("counted_", node.iter)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.args = [_filtered("small_", arg) for arg in node.args]
        for keyword in node.kwargs:
            keyword.value = _filtered("small_", keyword.value)
        if node.node is not None and node.name in _MULTIPLIERS:
            node.node = nodes.Filter(
                node.node,
                "product_",
                node.args,
                node.kwargs,
                None,
                None,
                lineno=node.lineno,
                environment=node.environment,
            )
        if node.node is not None:
            node.node = _filtered("tame_" if node.name == "format" else "weighed_", node.node)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered("weighed_", node.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered("weighed_", part) for part in node.nodes]
        return _filtered("weighed_", node)

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("weighed_", node)


def _filtered(name: str, value: nodes.Node) -> nodes.Filter:
    return nodes.Filter(
        value, name, [], [], None, None, lineno=value.lineno, environment=value.environment
    )
