"""The files of the repository, as the house tests see them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("schemas", "kernel", "projections", "consumers")
FOLDERS = (*SOURCE_ROOTS, "tests", "deploy", "docs")
NOT_OURS = {"dist", "build", "node_modules", "__pycache__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    importer: str
    imported: str
    where: str  # path:line


def markdown_files() -> list[Path]:
    """Every *.md outside hidden and generated folders."""
    return [path for path in sorted(ROOT.rglob("*.md")) if not _generated(path)]


def python_files(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not _generated(path)]


@cache
def imports() -> tuple[Import, ...]:
    """Every import in the four source roots, those inside functions and `TYPE_CHECKING` included."""
    return tuple(found for folder in SOURCE_ROOTS for path in python_files(folder) for found in _of(folder, path))


def module_name(folder: str, path: Path) -> str:
    """`kernel/atomlog/kernel/log/__init__.py` → `atomlog.kernel.log`."""
    parts = path.relative_to(ROOT / folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _of(folder: str, path: Path) -> Iterator[Import]:
    importer = module_name(folder, path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names):
                for name in names:
                    yield Import(importer=importer, imported=name.name, where=where)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for name in names:  # `from a.b import c` may import the module a.b.c
                    yield Import(importer=importer, imported=f"{module}.{name.name}", where=where)
            case ast.ImportFrom():
                raise AssertionError(f"{where}: relative import")
            case _:
                pass


def _generated(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in NOT_OURS for part in parts)
