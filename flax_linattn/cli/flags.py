"""Command lines from declared options: parsed by tyro, and made into options after that.

Options are the fields of dataclasses or the parameters of a function. tyro would build these
objects itself, and report what they refuse in its own words. Here a command line becomes a dict of
values by name, so that errors reach ``main``, which knows the flags.

``--help`` shows the main options, which the options classes name in ``main_options``;
``--help-all`` shows every option. An options class without ``main_options`` has main options only.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import docstring_parser
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from flax_linattn.checks import OptionError, suggest
from flax_linattn.cli import FLAGS, HELP
from flax_linattn.models.layers import Mechanisms
from flax_linattn.terminal import escape_controls, escaped_output

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P", bound="DataclassInstance")

TITLES = {"fit": "Training", "dialect": "Table", "play": "Environment"}
"""Titles of the groups of options in help texts, by the names of parts whose titles differ."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Options under one title of a help text.

    Attributes:
        title: Title; the options of a group without one stand under "options".
        about: What the options set, in a sentence.
        fields: The options.
        main: Names of the options that ``--help`` shows.
    """

    title: str
    about: str
    fields: tuple[StructFieldSpec, ...]
    main: tuple[str, ...]


def groups(part: Any, title: str = "", about: str = "") -> Iterator[Group]:
    """Groups of the options of a dataclass, with a group of its own for each nested dataclass.

    Args:
        part: An instance of the dataclass, which holds the defaults.
        title: Title of the group of its own options.
        about: What its own options set, in a sentence.
    """
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    parts = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    texts, hints = _attribute_texts(type(part)), get_type_hints(type(part))
    names = [name for name in values if name not in parts]
    fields = (_field(name, hints[name], values[name], texts.get(name, "")) for name in names)
    yield Group(title, about, tuple(fields), getattr(part, "main_options", tuple(names)))
    for name, value in parts.items():
        yield from groups(value, TITLES.get(name, name.title()), texts.get(name, ""))


def parse(
    listed: Iterable[Group],
    args: Sequence[str],
    prog: str,
    about: str = "",
    main: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Values of options by name, from a command line.

    Args:
        listed: The options.
        args: The command line.
        prog: The command, for its help.
        about: What the command does, for its help; lines are kept, and long lines wrapped.
        main: Names of the options that ``--help`` shows, in this order. Default: the main options
            of all groups.

    Raises:
        SystemExit: If the help was printed, or the command line was rejected with a message.
        OptionError: If a value is not a number, or none of the choices.
    """
    every = [group for group in listed if group.fields]
    fields = {field.name: field for group in every for field in group.fields}
    main = [name for group in every for name in group.main] if main is None else main
    is_short = "--help-all" not in args
    if any(word in HELP for word in args):
        args = ["--help"]  # before an error of the other words
    is_short &= args == ["--help"] and len(main) < len(fields)
    if is_short:
        every = [Group("", "", tuple(fields[name] for name in main), ())]
    try:
        with escaped_output(keep_colors=True):  # of tyro's help
            values: Any = tyro.cli(
                Group,
                args=args,
                default=_root(every, fields),
                prog=prog,
                description=_wrap(about),
                **_RULES,
            )
    except SystemExit:
        if is_short:
            print(f"'{prog} --help-all' lists all {len(fields)} options.")
        raise
    return _refuse(values)


def parse_known(part: P, args: Sequence[str]) -> tuple[P, list[str]]:
    """The options of a dataclass from a command line, and the rest of the line."""
    known: Any = {"return_unknown_args": True, "add_help": False, **_RULES}
    root: Any = _root(groups(part), {})
    values, rest = tyro.cli(Group, args=args, default=root, **known)
    return dataclasses.replace(part, **_refuse(values)), rest


def bind(command: Callable[..., Any], name: str, args: Sequence[str]) -> Callable[[], None]:
    """Parses a command line, and returns a function that calls ``command`` with its options."""
    hints, about = get_type_hints(command), docstring_parser.parse(docstring(command))
    texts = {one.arg_name: _one_line(one.description) for one in about.params}
    operands, fields = [], []
    for key, one in inspect.signature(command).parameters.items():
        operands += [key] if one.kind is one.POSITIONAL_ONLY else []
        default = tyro.MISSING if one.default is one.empty else one.default
        fields.append(_field(key, hints[key], default, texts[key], key in operands))
    described = filter(None, (about.short_description, _one_line(about.long_description)))
    options = Group("", "", tuple(fields), tuple(texts))
    values = parse([options], args, f"flax-linattn {name}", "\n\n".join(described))

    def run() -> None:
        with only({*texts}.difference(operands)):
            given = [values.pop(key) for key in operands]  # before the rest is passed by name
            command(*given, **values)

    return run


def asks_help(args: Sequence[str], error: str) -> bool:
    """Whether a command line asks for help without the operand that decides its options.

    Raises:
        ValueError: With the text ``error``, if it has neither an operand nor a word for help.
    """
    if args and not args[0].startswith("-"):
        return False
    if not any(word in HELP for word in args):
        raise ValueError(error)
    return True


@contextmanager
def only(names: Container[str]) -> Iterator[None]:
    """A context whose errors name only options that a command has."""
    try:
        yield
    except OptionError as error:
        error.options = tuple(n for n in error.options if n in names or FLAGS.get(n) in names)
        raise


def build(part: type[P], values: Mapping[str, Any]) -> P:
    """An object of an options class from values by name, which may have others."""
    return part(**{field.name: values[field.name] for field in dataclasses.fields(part)})


def _root(listed: Iterable[Group], names: Container[str]) -> Group:
    """One group of all options: of groups with titles, and of the fields of groups without."""
    fields: list[StructFieldSpec] = []
    for group in listed:
        named = tuple(_with_flags(field, names) for field in group.fields)
        if group.title:
            hint: Any = Annotated[Group, tyro.conf.arg(name=group.title)]
            inner = dataclasses.replace(group, fields=named)
            fields.append(StructFieldSpec(group.title, hint, inner, group.about))
        else:
            fields += named
    return Group("", "", tuple(fields), ())


@dataclasses.dataclass(frozen=True)
class _InvalidValue:
    """Error message of an invalid value, which is not raised inside tyro: tyro prints its own."""

    message: str


def _refuse(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values, unless one of them is invalid."""
    for name, value in values.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, _InvalidValue):
                raise OptionError(each.message, name)
    return values


def _group(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Makes a flat dict of the values of a group and its nested groups."""
    if not isinstance(info.default, Group):
        return None
    titles = {field.name for field in info.default.fields if isinstance(field.default, Group)}

    def flat(**values: Any) -> dict[str, Any]:
        own = {name: value for name, value in values.items() if name not in titles}
        return own | {k: v for title in titles for k, v in values[title].items()}

    return StructConstructorSpec(flat, info.default.fields)


def _field(
    name: str, hint: Any, default: Any, text: str, is_operand: bool = False
) -> StructFieldSpec:
    """An option for tyro: its flag, the kind of its value, its help text and its default."""
    is_required = default is tyro.MISSING and get_origin(hint) is not tuple
    hint_text = None if is_required else _default(default)
    text = _DEFAULT.sub("", text) if hint_text else text
    settings = tyro.conf.arg(
        name=FLAGS.get(name, name),
        metavar=_operand(name, hint) if is_operand else _metavar(hint),
        help_behavior_hint=hint_text,
    )
    positional: Any = tyro.conf.Positional
    hint = Annotated[hint, settings]
    return StructFieldSpec(name, positional[hint] if is_operand else hint, default, text)


_DEFAULT = re.compile(r" Default: .*")
"""The end of a help text, which says what None or an empty value means."""


def _operand(name: str, hint: Any) -> str:
    one = name.removesuffix("s").upper() if get_origin(hint) is tuple else name.upper()
    return f"{one} [{one} ...]" if get_origin(hint) is tuple else one


def _metavar(hint: Any) -> str | None:
    """The kind of an option's value, as a help text shows it; None leaves it to tyro.

    Example:
        >>> _metavar(int | None), _metavar(str | tuple[str, ...]), _metavar(Literal["a", "b"])
        ('INT', 'STR [STR ...]', '{a,b}')
    """
    if hint is bool or hint == Mechanisms:
        return None
    if get_origin(hint) is Literal:
        return f"{{{','.join(map(str, get_args(hint)))}}}"
    if get_origin(hint) is tuple:
        one = _metavar(get_args(hint)[0])
        return f"{one} [{one} ...]"
    kinds = [_metavar(kind) for kind in get_args(hint) if kind is not NoneType]
    return kinds[-1] if kinds else hint.__name__.upper()


def _default(value: Any) -> str:
    """A default as a help text shows it; empty if the text says what its absence means."""
    if value in (None, "", (), tyro.MISSING) or value is False:
        return ""
    if isinstance(value, float) and float(f"{value:g}") == value:
        value = f"{value:g}"
    value = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"(default: {escape_controls(value)})"


def docstring(part: Any) -> str:
    """The docstring of a function or class; under ``python -OO`` it is read from the source."""
    if sys.flags.optimize < 2:
        return inspect.getdoc(part) or ""
    with suppress(OSError, TypeError):  # no source, or a class of C
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return ast.get_docstring(node) or ""
    return ""


def _attribute_texts(part: Any) -> dict[str, str]:
    """Help texts of attributes from the docstrings of a dataclass and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(part.__mro__[:-1]):
        for one in docstring_parser.parse(docstring(base)).params:
            text = _one_line(one.description)
            texts[one.arg_name] = text[:1].upper() + text[1:]
    return texts


def _with_flags(field: StructFieldSpec, names: Container[str]) -> StructFieldSpec:
    """A field whose help text spells the options that it names as flags."""
    choices = get_args(get_args(field.type)[0])

    def spell(match: re.Match[str]) -> str:
        word = match[1]
        if word in names and word not in choices:
            return f"--{FLAGS.get(word, word).replace('_', '-')}"
        return word if "." in word else f'"{word}"'

    text = re.sub("``(.*?)``", spell, str(field.helptext or ""))
    return dataclasses.replace(field, helptext=text)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _wrap(text: str) -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    lines = (
        textwrap.wrap(line, width, subsequent_indent=" " * _indent(line)) or [""]
        for line in text.splitlines()
    )
    return "\n".join(row for rows in lines for row in rows)


def _indent(line: str) -> int:
    """Indent of the lines that a line is wrapped to: its second column if it is indented.

    It is never 0, as tyro joins lines that begin with a letter.
    """
    row = re.match(r" +\S+ +", line)
    return len(row[0]) if row else 2


def _scalar(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A number, or one of several choices; a refused one says what was expected."""
    is_union = get_origin(info.type) in (Union, UnionType)
    kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
    kind: Any = kinds[0] if is_union and len(kinds) == 1 else info.type
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if not choices and kind not in (int, float):
        return None

    def read(words: list[str]) -> Any:
        if is_union and words == ["None"]:
            return None
        try:
            return choices[choices.index(words[0])] if choices else kind(words[0])
        except ValueError:
            expected = f"one of {', '.join(choices)}" if choices else _NUMBERS[kind]
            hint = suggest(words[0], choices)
            return _InvalidValue(f"expected {expected}, got {words[0]!r}{hint}")

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=str(_metavar(kind)),
        instance_from_str=read,
        is_instance=lambda value: (
            value is None or value in choices or isinstance(value, (int, float))
        ),
        str_from_instance=lambda value: [str(value)],
    )


_NUMBERS = {int: "an integer", float: "a number"}


def _mechanisms(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Names: one for all layers, or one for each."""
    if info.type != Mechanisms:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME [NAME ...]",
        instance_from_str=lambda names: names[0] if len(names) == 1 else tuple(names),
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            [value] if isinstance(value, str) else list(map(str, value))
        ),
    )


def _registry() -> ConstructorRegistry:
    """Rules for tyro: a group is a dict of values, and mechanisms and choices are names."""
    rules = ConstructorRegistry()
    rules.struct_rule(_group)
    rules.primitive_rule(_mechanisms)
    rules.primitive_rule(_scalar)
    return rules


_RULES: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,), "registry": _registry()}
"""How tyro parses all command lines; flags have no prefixes of their groups."""
