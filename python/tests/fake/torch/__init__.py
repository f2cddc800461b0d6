"""Enough of torch for tests of the bootstrap that must be fast."""

import sys
import types

__version__ = "2.9.1+fake"


class OutOfMemoryError(RuntimeError):
    pass


class _C:
    pass


class version:
    cuda = None


class cuda:
    calls = []

    @staticmethod
    def is_initialized():
        return False

    @staticmethod
    def is_available():
        return False

    @staticmethod
    def _lazy_call(f):
        cuda.calls.append(f)


class _Module:
    def __call__(self):
        pass


class _BatchNorm:
    pass


class _DataLoader:
    pass


nn = types.SimpleNamespace(Module=_Module, modules=types.SimpleNamespace(batchnorm=types.SimpleNamespace(_BatchNorm=_BatchNorm)))
utils = types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=_DataLoader))
_optimizer = types.ModuleType("torch.optim.optimizer")
_optimizer.hooks = []
_optimizer.register_optimizer_step_post_hook = _optimizer.hooks.append
optim = types.ModuleType("torch.optim")
optim.optimizer = _optimizer
optim.__path__ = []
sys.modules["torch.optim"] = optim
sys.modules["torch.optim.optimizer"] = _optimizer
