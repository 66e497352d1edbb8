"""What every command shares: which store, how to run a coroutine, and how an end becomes an exit code."""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from atomlog.consumers.cli.output import emit_json, printable, show_error
from atomlog.consumers.cli.streams import leave_standard_output, take_standard_streams
from atomlog.consumers.events import Event, is_trouble, stamped
from atomlog.consumers.store_arguments import TIMEOUT_S_MAX
from atomlog.kernel import jsontext
from atomlog.kernel.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, AtomlogError, of_system
from atomlog.kernel.ids import invalid
from atomlog.kernel.model import error_result
from atomlog.kernel.settings import Settings
from atomlog.kernel.system import SystemClock

if TYPE_CHECKING:
    from atomlog.consumers.store import AsyncStore

STORE: Final = "./atomlog-data"
EXIT_TERMINATED: Final = 128 + signal.SIGTERM
EXIT_BROKEN_PIPE: Final = 128 + signal.SIGPIPE
_JSON: Final = "atomlog.json"

T = TypeVar("T")
Function = Callable[..., Any]


class Terminated(BaseException):
    """The process was asked to end by SIGTERM, and everything was closed."""


class Root(click.Group):
    """The whole command. Ends with the exit code of what went wrong, and no traceback for what is not a bug."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        take_standard_streams()
        try:
            return super().main(*arguments, **options)
        except OSError as error:  # of what is printed before a command runs, e.g. a help text
            leave_standard_output()
            click.echo(f"error: {error}", err=True)
            sys.exit(EXIT_INTERNAL)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_JSON] = "--json" in args  # until the command's own options are known
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # of the command line itself
            if ctx.meta.get(_JSON, False):
                emit_json(error_result(invalid("arguments", error.format_message()).to_dict()))
            raise
        except AtomlogError as error:
            show_error(error, as_json=ctx.meta.get(_JSON, False))
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except Terminated:
            ctx.exit(EXIT_TERMINATED)
        except BrokenPipeError:
            leave_standard_output()
            ctx.exit(EXIT_BROKEN_PIPE)
        except OSError as error:
            leave_standard_output()
            if error.filename is not None:  # of a file, not of a standard stream
                told = of_system(error, str(error.filename))
                show_error(told, as_json=ctx.meta.get(_JSON, False))
                ctx.exit(told.exit_code)
            click.echo(f"error: {error}", err=True)
            ctx.exit(EXIT_INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Where a command works. `verbose`: all that consumers say goes to stderr, a line of JSON each."""

    directory: str
    master_key_file: str | None
    as_json: bool
    verbose: bool

    @asynccontextmanager
    async def current_store(self, projections: Sequence[str] | None = None) -> "AsyncIterator[AsyncStore]":
        """The store to read from, once these projections have applied what was in the log when it was opened.

        Where one is too far behind, or stopped, the read goes ahead and says how far each is.
        """
        async with self.store(projections=projections) as store:
            with _despite_lag():
                await store.wait_until_current(min(settings().read_timeout_ms / 1_000, TIMEOUT_S_MAX))
            yield store

    @asynccontextmanager
    async def store(
        self, *, create: bool = False, projections: Sequence[str] | None = None
    ) -> "AsyncIterator[AsyncStore]":
        """The open store; `create` for commands that write. `projections`: those that are needed, all unless given."""
        from atomlog.consumers.parts import PROJECTIONS
        from atomlog.consumers.store import AsyncStore  # loads everything: after the command line is understood

        async with await AsyncStore.open(
            self.directory,
            create=create,
            projections=PROJECTIONS if projections is None else projections,
            settings=settings(),
            master_key_file=self.master_key_file,
            on_event=self.say_event,
        ) as store:
            yield store

    def say_event(self, event: Event) -> None:
        """Troubles in any case, the rest when asked for."""
        if self.verbose or is_trouble(event):
            line = jsontext.dumps(stamped(event, SystemClock().now_us()))
            click.echo(printable(line.decode()), err=True)


@contextmanager
def _despite_lag() -> Iterator[None]:
    try:
        yield
    except AtomlogError as error:
        if error.code != "INDEX_LAGGING":
            raise


def settings() -> Settings:
    """Those of this process's environment."""
    return Settings.from_environment(os.environ)


def say(message: str) -> None:
    """A message for a person, on stderr."""
    click.echo(message, err=True)


def with_session(function: Function) -> Function:
    """Adds the options that every command on a store has, and passes the `Session` first."""

    @click.option("--store", metavar="DIR", help="The store's directory.  [default: that of atomlog]")
    @click.option("--master-key", metavar="FILE", help="The file with the store's master key.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def command(*arguments: Any, store: str | None, master_key: str | None, as_json: bool, **options: Any) -> Any:
        ctx = click.get_current_context()
        root = ctx.find_root().params
        ctx.meta[_JSON] = as_json
        session = Session(
            directory=store or root["store"],
            master_key_file=master_key or root["master_key"],
            as_json=as_json,
            verbose=root["verbose"],
        )
        return function(session, *arguments, **options)

    return command


def with_keys(function: Function) -> Function:
    """Adds where `key:TEXT` is computed."""
    space = click.option(
        "--space",
        envvar="ATOMLOG_SPACE",
        default="default",
        show_default=True,
        show_envvar=True,
        help="The space of key:TEXT.",
    )
    policy = click.option("--key-policy", metavar="NAME", help="The policy of key:TEXT.  [default: named as the space]")
    return space(policy(function))


def example(*commands: str) -> str:
    """The end of a command's help."""
    lines = "\n".join(f"  {command}" for command in commands)
    return f"\b\nExample{'s' if len(commands) > 1 else ''}:\n{lines}"


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine. Ctrl-C and SIGTERM cancel it, so that the store is closed before the process ends.

    A second Ctrl-C does not wait for that.
    """
    return asyncio.run(_until_terminated(work))


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        if task is not None:
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await work
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise
