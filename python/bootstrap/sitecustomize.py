# Loaded by Python at start, since unoom put this folder on PYTHONPATH. It must
# cost nothing in processes that never import torch, must not fail, and must not
# hide the sitecustomize that would have been loaded instead of it. Only sys is
# imported here; the rest waits until somebody imports torch.
import sys


def _chain(here):
    """Loads the next sitecustomize on sys.path, if there is one."""
    path = sys.path
    own = [p for p in path if p == here]
    saved = sys.modules.pop("sitecustomize", None)
    try:
        sys.path = [p for p in path if p != here]
        __import__("sitecustomize")
    except ImportError as e:
        if getattr(e, "name", "sitecustomize") not in (None, "sitecustomize"):
            raise
    finally:
        # A sitecustomize may have changed sys.path: keep that, put ours back.
        sys.path[:0] = own
        if "sitecustomize" not in sys.modules and saved is not None:
            sys.modules["sitecustomize"] = saved


def _arm(here):
    import os

    if os.environ.get("UNOOM_DISABLE") or sys.version_info < (3, 9):
        return
    busy = []  # a finder asks the others, which must not ask it again

    class Finder(object):
        """Calls unoom._hook after torch and the trainers have been imported."""

        names = {
            "torch": "torch",
            "transformers.training_args": "transformers_arguments",
            "transformers.trainer": "transformers_trainer",
            "lightning.pytorch.trainer.trainer": "lightning_trainer",
            "pytorch_lightning.trainer.trainer": "lightning_trainer",
            "accelerate.accelerator": "accelerate",
            "deepspeed": "deepspeed",
        }

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name not in cls.names or name in busy:
                return None
            busy.append(name)
            try:
                for finder in sys.meta_path:
                    if finder is cls or not hasattr(finder, "find_spec"):
                        continue
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        break
                else:
                    return None
            finally:
                busy.remove(name)
            loader = spec.loader
            run = getattr(loader, "exec_module", None)
            if run is None:
                return spec

            def exec_module(module):
                run(module)
                try:
                    loader.exec_module = run
                except Exception:
                    pass
                try:
                    if name == "torch":
                        if here + "/" not in sys.path:
                            _code(here)
                    from unoom import _hook

                    _hook.loaded(cls.names[name], module, here)
                except Exception:
                    if os.environ.get("UNOOM_DEBUG"):
                        raise

            try:
                loader.exec_module = exec_module
            except Exception:
                pass
            return spec

    sys.meta_path.insert(0, Finder)


def _code(here):
    """Makes `import unoom` find the package that came with this bootstrap, not
    another version that may be installed. The script's own folder stays first."""
    import json

    with open(here + "/unoom.json") as f:
        code = json.load(f).get("code")
    if code and code not in sys.path:
        sys.path.insert(1, code)


_here = __file__.rpartition("/")[0]
try:
    _arm(_here)
except Exception:
    pass
_chain(_here)
