"""Options and arguments that are more than a word."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from atomlog.consumers.store_arguments import TIMEOUT_S_MAX
from atomlog.kernel import jsontext
from atomlog.kernel.errors import AtomlogError

Function = Callable[..., Any]


class JsonObject(click.ParamType[Any]):
    """An object as JSON text."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        found = self._parsed(value, param, ctx)
        if not isinstance(found, dict):
            self.fail('must be an object, e.g. {"schema": "source"}', param, ctx)
        return found

    def _parsed(self, text: str | bytes, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return jsontext.parse_json(text)
        except AtomlogError as error:
            self.fail(error.message, param, ctx)


class JsonFile(JsonObject):
    """The path of a file that holds an object as JSON."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        with click.File("rb").convert(value, param, ctx) as file:
            text = file.read().decode("utf-8", "surrogateescape")
        return super().convert(text, param, ctx)


class AtomId(click.ParamType[Any]):
    """An atom: a UUID, key:TEXT, RECEIPT#a1, or {"key", "space", "policy"}. What it means, the store decides."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return JSON_OBJECT.convert(value, param, ctx) if isinstance(value, str) and value.startswith("{") else value


class At(click.ParamType[Any]):
    """A position, or one for each partition: `17` or `0:17,1:5`."""

    name = "position"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Mapping[int, int]:
        if isinstance(value, int | Mapping):
            return value
        try:
            if ":" not in value:
                return int(value)
            pairs = [pair.split(":") for pair in str(value).split(",")]
            found = {int(partition): int(position) for partition, position in pairs}
        except ValueError:
            self.fail(f"{value!r} is no position; write 17, or 0:17,1:5 for several partitions", param, ctx)
        if len(found) != len(pairs):
            self.fail(f"{value!r} names a partition twice", param, ctx)
        return found


class Seconds(click.ParamType[Any]):
    """A length of time."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = click.FLOAT.convert(value, param, ctx)
        if not 0 < seconds <= TIMEOUT_S_MAX:  # NaN is neither
            self.fail(f"{value!r} is no number of seconds above 0, up to {TIMEOUT_S_MAX:.0f}", param, ctx)
        return float(seconds)


JSON_OBJECT = JsonObject()
JSON_FILE = JsonFile()
ATOM_ID = AtomId()
AT = At()
SECONDS = Seconds()


def complete_with(*words: str) -> Function:
    """What a shell offers for an argument: those of these words that begin so."""

    def begun(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return begun


def with_read_options(function: Function) -> Function:
    """Adds how a read is answered. The command gets them as keywords of the store's own names."""
    options = (
        click.option("--at", type=AT, help="As of a position: 17, or 0:17,1:5 for several partitions."),
        click.option("--as-of", metavar="TIME", help="As of a time, RFC 3339 with offset."),
        click.option("--at-least", type=JSON_OBJECT, metavar="RECEIPT", help="Wait for a write: its receipt as JSON."),
        click.option("--consistency", type=click.Choice(["snapshot", "version_pinned"]), help="[default: snapshot]"),
        click.option("--limit", type=int, metavar="N", help="Rows of a page."),
        click.option("--continue", "continuation", metavar="TEXT", help="The page after the one that gave this text."),
        click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="How long to wait for an index."),
    )
    for option in reversed(options):
        function = option(function)
    return function
