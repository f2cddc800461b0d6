"""Stands in for modules that libraries import at the top and only training needs."""

import abc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

class _Class(abc.ABCMeta):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __getitem__(cls, item):
        return cls

    def __iter__(cls):  # else __getitem__ would go on for ever
        return iter(())


class Absent(metaclass=_Class):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class AbsentModule(types.ModuleType):
    __path__ = []
    __version__ = "99"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = {"triton", "evaluate", "datasets", "trl", "pandas", "pyarrow", "wandb", "tensorboard", "sqlalchemy", "aiosqlite", "prometheus_client", "ring_flash_attn", "httpx", "alembic", "dotenv", "prettytable", "aiohttp", "jwt", "fastapi", "starlette", "psycopg2", "tiktoken", "sentencepiece", "uvicorn"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


def bare(name):
    """A package without its __init__, which would import all of it."""
    spec = importlib.util.find_spec(name)
    module = types.ModuleType(name)
    module.__path__ = list(spec.submodule_search_locations)
    module.__version__ = "0.14.1"
    sys.modules[name] = module


def install():
    """Stands in for what is not installed, and only for that."""
    finder = AbsentFinder()
    finder.names = {n for n in finder.names if importlib.util.find_spec(n) is None}
    sys.meta_path.append(finder)
