"""The reference pages: `python docs/write_reference.py FOLDER` writes api.md and cli.md there.

`make reference` writes docs/reference/, which is committed, so that it can be read on a git host too. A test writes the
pages again and fails where they differ. Signatures and docstrings are read from the source by griffe, without importing
pencil; the commands are those of the Typer application, in the words of Typer's own page of them.
"""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
MODULES: dict[str, tuple[str, ...]] = {
    "pencil": (),
    "pencil.data": (),
    "pencil.data.noise": (),
    "pencil.labels": (
        "LabelStore",
        "TopKLabelStore",
        "MultilabelStore",
        "label_gradient",
        "forward_kl_label_gradient",
        "binary_label_gradient",
        "init_scale",
        "read_labels",
        "LabelReading",
        "read_entries",
        "EntryReading",
    ),
    "pencil.labels.multilabel_losses": (),
    "pencil.methods": (),
    "pencil.models": (),
    "pencil.training": (),
    "pencil.recipe": (),
    "pencil.runs.directory": ("RunReader", "RunWriter", "RunData"),
    "pencil.runs.manifest": ("verify",),
    "pencil.runs.label_table": ("LabelTable", "CodedLabels"),
    "pencil.runs.summary": (),
    "pencil.runs.annotators": ("Annotators",),
    "pencil.labels.annotators": ("Annotator", "Confusion", "consensus", "describe_annotators"),
    "pencil.data.given.votes": ("Votes", "Crowd", "dawid_skene"),
    "pencil.export": (),
    "pencil.export.network": ("export_model", "Exported"),
    "pencil.export.tools": ("save_for", "import_file"),
    "pencil.export.answers": ("Imported",),
    "pencil.report": (),
    "pencil.review": (),
    "pencil.auditing": (),
    "pencil.integrations": (),
    "pencil.integrations.lightning": (),
    "pencil.integrations.hugging_face": (),
}
"""The public modules in the order of the page, each with the names to describe; without names, all that it exports.

An object that several modules export is described in the first.
"""
WIDTH = 100
WRITTEN = "<!-- Written by `make reference`; change the docstrings or the help texts instead. -->"
API_INTRO = """# API reference

Everything that user code may import, from the docstrings. `import pencil` does not import torch; the names of `pencil`
are imported on first use. [Your own loop](../own-loop.md) and [Integrations](../integrations.md) show them at work, and
the [glossary](../glossary.md) explains the words.
"""
CLI_INTRO = """# Command line reference

Every command with its arguments, options and defaults, from the application itself; `pencil COMMAND --help` prints the
same. Results go to stdout, progress and warnings to stderr. Exit codes: 0 done, 2 a mistake in the input (one clear
line), 75 stopped and can be resumed, 130 interrupted.
"""
SECTIONS = {"parameters": "Parameters", "attributes": "Attributes", "returns": "Returns", "raises": "Raises"}
VARIADIC = {"variadic positional": "*", "variadic keyword": "**"}


def api_page() -> str:
    """Return the page of all public objects, module by module, with a list of them at the top of each module."""
    package = griffe.load("pencil", search_paths=[ROOT / "src"], docstring_parser="numpy", allow_inspection=False)
    homes: dict[str, str] = {}  # where an object is described, by the path at which it is defined
    parts = [WRITTEN, API_INTRO.rstrip()]
    for name, names in MODULES.items():
        module = package if name == "pencil" else package[name.removeprefix("pencil.")]
        found = dict(public_members(module, names))
        for short, thing in found.items():
            homes.setdefault(thing.path, f"{name}.{short}")
        parts += [f"## `{name}`", *text_of(module), "\n".join(link(homes[one.path]) for one in found.values())]
        for short, thing in found.items():
            if homes[thing.path] == f"{name}.{short}":
                parts += object_parts(f"{name}.{short}", thing)
    return "\n\n".join(part for part in parts if part) + "\n"


def public_members(module: griffe.Object, names: tuple[str, ...] = ()) -> list[tuple[str, griffe.Object]]:
    """Return these names, or what a module exports: ``__all__``, or else its own public names. Errors come last."""
    chosen = (
        names
        or module.exports
        or [name for name, member in module.members.items() if not member.is_alias and not member.is_module]
    )
    found = []
    for name in map(str, chosen):
        if not name.startswith("_"):
            member = module.members[name]
            member = member.final_target if member.is_alias else member
            found.append((name, member.members[name] if member.is_module else member))  # a module named as its function
    return sorted(found, key=lambda one: one[1].parent.name == "errors")


def link(path: str) -> str:
    """Return a list entry that leads to an object's heading, on a git host and in the site."""
    return f"- [`{path}`](#{path.replace('.', '').lower()})"


def object_parts(path: str, thing: griffe.Object) -> Iterator[str]:
    """Yield the heading, the signature, the docstring and the members of an object."""
    source = thing.filepath.relative_to(ROOT).as_posix()
    yield f"### `{path}`"
    if isinstance(thing, griffe.Class):
        yield code(class_signature(thing))
    elif isinstance(thing, griffe.Function):
        yield code(function_signature(thing))
    else:
        yield code(attribute_signature(thing))
    yield from text_of(thing)
    yield f"Source: [{source}](../../{source})"
    if isinstance(thing, griffe.Class):
        for name, member in thing.members.items():
            if name.startswith("_") or member.is_alias:
                continue
            if isinstance(member, griffe.Function) or "property" in member.labels:
                yield f"#### `{thing.name}.{name}`"
                yield code(attribute_signature(member) if "property" in member.labels else function_signature(member))
                yield from text_of(member)


def code(text: str) -> str:
    """Return a code block; `py`, since blocks of `python` in these pages are run by the tests."""
    return f"```py\n{text}\n```"


def function_signature(function: griffe.Function) -> str:
    """Return ``name(parameters) -> type``."""
    returns = f" -> {plain(function.returns)}" if function.returns else ""
    return call(function.name, function.parameters, returns)


def class_signature(cls: griffe.Class) -> str:
    """Return the call that makes an instance; for plain data the fields as they are declared."""
    constructor = cls.members.get("__init__")
    if isinstance(constructor, griffe.Function) and "dataclass" not in cls.labels:
        return call(f"class {cls.name}", constructor.parameters, "")
    bases = f"({', '.join(map(plain, cls.bases))})" if cls.bases else ""
    fields = [
        f"    {attribute_signature(member)}"
        for name, member in cls.members.items()
        if isinstance(member, griffe.Attribute) and member.annotation and not name.startswith("_")
        if "property" not in member.labels
    ]
    decorator = "@dataclass\n" if "dataclass" in cls.labels else ""
    return f"{decorator}class {cls.name}{bases}" + (":\n" + "\n".join(fields) if fields else "")


def attribute_signature(attribute: griffe.Object) -> str:
    """Return ``name: type = value``; a long value is left out."""
    annotation = f": {plain(attribute.annotation)}" if attribute.annotation else ""
    value = plain(attribute.value) if isinstance(attribute, griffe.Attribute) and attribute.value else ""
    return attribute.name + annotation + (f" = {value}" if value and len(value) < WIDTH else " = ..." if value else "")


def call(name: str, parameters: griffe.Parameters, returns: str) -> str:
    """Return a signature, one parameter on each line where they do not fit on one."""
    words: list[str] = []
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind.value if parameter.kind else ""
        if kind == "keyword-only" and "*" not in words and not any(word.startswith("*") for word in words):
            words.append("*")
        annotation = f": {plain(parameter.annotation)}" if parameter.annotation else ""
        default = ""
        if parameter.default is not None and kind not in VARIADIC:
            default = f" = {plain(parameter.default)}" if annotation else f"={plain(parameter.default)}"
        words.append(f"{VARIADIC.get(kind, '')}{parameter.name}{annotation}{default}")
    line = f"{name}({', '.join(words)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def plain(expression: object) -> str:
    """Return an expression as source, with the quotes that the source has."""
    text = str(expression)
    return text if '"' in text else text.replace("'", '"')


def text_of(thing: griffe.Object) -> Iterator[str]:
    """Yield the docstring as Markdown: text as it is, sections of numpydoc as lists."""
    if thing.docstring is None:
        return
    for section in thing.docstring.parsed:
        kind = section.kind.value
        if kind == "text":
            yield markdown(section.value)
        elif kind == "examples":
            yield "**Examples**"
            for form, value in section.value:
                yield markdown(value) if form.value == "text" else f"```pycon\n{value}\n```"
        elif kind in SECTIONS:
            yield f"**{SECTIONS[kind]}**"
            yield "\n".join(entry(element) for element in section.value)


def entry(element: griffe.DocstringElement) -> str:
    """Return a parameter, a field, a result or an error as an entry of a list."""
    name, annotation = getattr(element, "name", ""), element.annotation
    head = [f"`{name}`"] if name else []
    if annotation:
        head.append(f"(`{plain(annotation)}`)" if name else f"`{plain(annotation)}`")
    return f"- {' '.join(head)}: {' '.join(markdown(element.description).split())}"


def markdown(text: str) -> str:
    """Return text of a docstring as Markdown: no roles of reStructuredText, and sessions as code blocks."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"(?m)^>>> .*(?:\n(?!\s*$).+)*", lambda session: f"```pycon\n{session[0]}\n```", text)


def cli_page() -> str:
    """Return Typer's page of all commands, with whole sentences and links in the list of commands."""
    command = [sys.executable, "-m", "typer", "pencil.cli", "utils", "docs", "--name", "pencil"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    text = html.unescape(text).replace(
        "```console\n$ ", "```text\n"
    )  # `$ pencil` lines in these pages are run by tests
    text = text.removeprefix("# `pencil`\n\n")
    texts = dict(re.findall(r"(?m)^##+ `pencil ([\w -]+)`\n\n(.+(?:\n.+)*)", text))
    group = ""
    lines = []
    for line in text.splitlines():
        if heading := re.match(r"##+ `pencil ([\w -]+)`", line):
            group = f"{heading[1]} "
        listed = re.match(r"\* `([\w-]+)`: ", line)
        name = listed and (group + listed[1])
        if name in texts:
            summary = " ".join(texts[name].split())
            line = f"* [`{name}`](#pencil-{name.replace(' ', '-')}): {summary}"
        lines.append(line)
    return f"{WRITTEN}\n\n{CLI_INTRO}\n" + "\n".join(lines).rstrip() + "\n"


def write(folder: Path) -> None:
    """Write both pages."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "cli.md").write_text(cli_page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
