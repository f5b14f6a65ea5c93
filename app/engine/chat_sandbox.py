"""Jinja for templates from strangers: what a chat template needs, with bounds on time and memory.

Jinja's sandbox keeps a template away from Python's internals, but lets it loop forever and double a string until
memory ends. Here every loop's turn, call, filter and operator is counted, and every value that can grow is measured
before it is made. What no chat template needs is not there: other filters, methods and globals, recursive
loops, other files.

Imports jinja2, which the page loads only for a model that has a template.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Environment, TemplateError, Undefined, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 100_000
MAX_SECONDS = 5.0
MAX_SIZE = 2_000_000
"""Characters of a value, and of all that is written; an item of a list counts for ITEM of them."""
ITEM = 64
MAX_NUMBER_BITS = 256
MAX_NESTING, MAX_DEPTH = 40, 120
"""Brackets, blocks and the like within each other; nodes of the tree that the parser makes of them."""
_BLOCKS = ("for", "if", "macro", "call", "filter", "generation", "with", "autoescape", "block")

_FILTERS = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int"),
    *("items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "round"),
    *("safe", "select", "selectattr", "sort", "string", "title", "trim", "unique", "upper"),
)
_METHODS: dict[type, tuple[str, ...]] = {
    str: (
        *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower", "isspace"),
        *("isupper", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rpartition", "rsplit"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "join", "replace"),
    ),
    dict: ("get", "items", "keys", "values"),
    list: ("count", "index"),
    tuple: ("count", "index"),
    LoopContext: ("cycle", "changed"),
}


class TemplateLimitError(TemplateError):
    """A template wants more than it may have."""


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote, for training. It changes nothing here."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counted(NodeTransformer):
    """Puts the environment's checks where Jinja has no hook for them."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Return what stands in the place of a node."""
        made = self.generic_visit(node, *args, **kwargs)
        if isinstance(made, nodes.For):
            if made.recursive:
                raise TemplateLimitError("recursive loops are not supported")
            made.iter = _checked("limited_turns", made.iter)
        elif isinstance(made, nodes.TemplateData):
            return _checked("limited_text", nodes.Const(made.data))
        elif isinstance(made, nodes.Concat):
            return _checked("limited_concat", *made.nodes)
        elif isinstance(made, nodes.List | nodes.Dict) or (isinstance(made, nodes.Tuple) and made.ctx == "load"):
            return _checked("measured", made)
        return made


def _checked(name: str, *arguments: Any) -> nodes.Expr:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """As transformers' `_compile_jinja_template` has it, and bounded."""

    intercepted_binops = frozenset(("+", "*", "**", "%", "-", "/", "//"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
            finalize=self._written,
        )
        limited = {
            "join": self._join,
            "replace": self._replace,
            "indent": self._indent,
            "tojson": self._to_json,
        }
        found: dict[str, Any] = {name: FILTERS[name] for name in _FILTERS} | limited
        self.filters = {name: self._counted(function) for name, function in found.items()}
        self.globals = {
            "range": self._range,
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise,
            "strftime_now": _now,
        }
        self._own = {self.limited_turns, self.limited_text, self.limited_concat, self.measured, *self.globals.values()}
        self.start()

    def start(self) -> None:
        """Begin to count anew."""
        self._steps, self._size, self._deadline = 0, 0, time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count one more thing that a template does."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._deadline:
            raise TemplateLimitError("it takes too long")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self._check_nesting(source)
        parsed = super()._parse(source, name, filename)
        _check_depth(parsed)
        made = _Counted().visit(parsed)
        assert isinstance(made, nodes.Template)
        made.set_lineno(1)
        return made

    def _check_nesting(self, source: str) -> None:
        """Refuse what would make the parser call itself too often: in the page a stack that overflows ends Python."""
        brackets = blocks = prefixes = elses = 0
        before, opens = "", False
        for _, kind, value in self.lex(source):
            if kind == "whitespace":
                continue
            if kind in ("block_begin", "variable_begin"):
                elses = 0
            elif kind == "block_end":
                blocks += opens
                opens = False
            elif kind == "operator":
                brackets += (value in "([{") - (value in ")]}")
                opens = opens and value != "="
            elif kind == "name" and before == "block_begin":
                blocks -= value.startswith("end")
                opens = value in _BLOCKS or value == "set"  # {% set x = 1 %} has no end
            elif kind == "name" and value == "else":
                elses += 1
            prefixes = prefixes + 1 if value in ("-", "+", "not") else 0
            before = kind
            if max(brackets, blocks, prefixes, elses) > MAX_NESTING:
                raise TemplateLimitError("it is nested too deep")

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template may call."""
        self.step()
        if isinstance(obj, Undefined):
            return super().call(context, obj, *args, **kwargs)  # which says what is undefined
        if isinstance(obj, Macro):
            return self.measured(super().call(context, obj, *args, **kwargs))
        for internal in ("_block_vars", "_loop_vars"):  # of Jinja's compiler, for functions that want the context
            kwargs.pop(internal, None)
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if callable(obj) and obj in self._own:
            return self.measured(obj(*args, **kwargs))
        if owner is None or name not in _METHODS.get(type(owner), ()):
            raise TemplateLimitError(f"it calls {str(name or type(obj).__name__)[:60]!r}, which chat templates may not")
        if name == "join":
            return self._join(args[0] if args else (), str(owner))
        if name == "replace":
            return self._replace(owner, *args)
        return self.measured(obj(*args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute, unless the result would be too large."""
        self.step()
        texts = (str, bytes, list, tuple)
        if operator == "**" or (operator == "%" and isinstance(left, texts)):
            raise TemplateLimitError(f"it uses the operator {operator} in a way that chat templates may not")
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, texts) and isinstance(times, int):
                    self._bound(size_of(value) * max(0, times))
        if operator == "+" and isinstance(left, texts) and isinstance(right, texts):
            self._bound(size_of(left) + size_of(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MAX_NUMBER_BITS:
            raise TemplateLimitError("it computes with numbers that are too large")
        return result

    def limited_turns(self, values: Iterable[Any]) -> Iterator[Any]:
        """Count each turn of a loop."""
        if isinstance(values, Undefined):
            return
        for value in values:
            self.step()
            yield value

    def limited_text(self, data: str) -> str:
        """Return the template's own text."""
        return data

    def limited_concat(self, *values: Any) -> str:
        """Join the operands of `~`."""
        texts = [_str(value) for value in values]
        self._bound(sum(map(len, texts)))
        return "".join(texts)

    def measured(self, value: Any) -> Any:
        """Return a value, if it is not too large."""
        self._bound(size_of(value))
        return value

    def _bound(self, size: int) -> None:
        if size > MAX_SIZE:
            raise TemplateLimitError("it makes something too large")

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return self.measured(function(*args, **kwargs))

        return counted

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = list(self.limited_turns(value))
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        texts = [_str(item) for item in items]
        self._bound(sum(map(len, texts)) + len(str(d)) * len(texts))
        return str(d).join(texts)

    def _replace(self, value: Any, old: str, new: str, count: int | None = -1) -> str:
        text, old, new = _str(value), str(old), str(new)
        count = -1 if count is None else int(count)
        found = text.count(old) if count < 0 else min(count, text.count(old))
        self._bound(len(text) + found * len(new))
        return text.replace(old, new, count)

    def _indent(self, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text = _str(value)
        self._bound(len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))
        made: str = FILTERS["indent"](text, width, first, blank)
        return made

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not 0 <= int(indent) <= 16:
            raise TemplateLimitError("it indents JSON too far")
        self._bound(size_of(value))
        try:
            return json.dumps(
                value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
            )
        except (TypeError, ValueError) as error:
            raise TemplateError(f"tojson cannot write a {type(value).__name__}") from error

    def _range(self, *bounds: int) -> range:
        made = range(*bounds)
        if len(made) > MAX_STEPS:
            raise TemplateLimitError("its range is too long")
        return made

    @staticmethod
    @pass_context
    def _written(context: Context, value: Any) -> str:
        environment = context.environment
        assert isinstance(environment, ChatEnvironment)
        text = _str(value)
        environment._size += len(text)
        environment._bound(environment._size)
        return text


def _str(value: Any) -> str:
    if not isinstance(value, str):
        if size_of(value) > MAX_SIZE:
            raise TemplateLimitError("it makes something too large")
        value = str(value)
    return str(value)


def size_of(value: Any, depth: int = 0) -> int:
    """Return how large a value is, written out: characters, and ITEM for each item; at least MAX_SIZE + 1 is enough."""
    if isinstance(value, str | bytes):
        return len(value)
    if not isinstance(value, list | tuple | dict):
        return ITEM
    if depth > 100:
        return MAX_SIZE + 1
    total = ITEM
    items = [part for pair in value.items() for part in pair] if isinstance(value, Mapping) else value
    for item in items:
        total += ITEM + size_of(item, depth + 1)
        if total > MAX_SIZE:
            break
    return total


def _check_depth(node: nodes.Node) -> None:
    """Refuse a tree that is too deep for the compiler. (A sum of many parts is one, as the parser reads it.)"""
    waiting = [(node, 1)]
    while waiting:
        parent, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise TemplateLimitError("it is nested too deep")
        waiting += [(child, depth + 1) for child in parent.iter_child_nodes()]


def _raise(message: Any) -> None:
    raise TemplateError(_str(message)[:500])


def _now(form: str) -> str:
    if len(str(form)) > 200:
        raise TemplateLimitError("its date's format is too long")
    return datetime.now().strftime(str(form))
