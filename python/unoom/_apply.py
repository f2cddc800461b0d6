"""Applies the supervisor's settings inside the trainers that people use.

Each trainer reports what the script asked for and what is in force. A setting
is applied only if the rows of an optimizer step stay what the script asked for;
else it says why not, and the script runs as written.

Micro-batches of unequal size are exact only where each is weighted by what it
holds. Trainer does so for models that take num_items_in_batch, by tokens; the
others take the mean of the micro-batches' means, and get equal ones.
"""

import functools
import os
import sys

from . import _events

# What is in force: rows of a micro-batch, micro-batches of a step; samples are
# the rows of a step where the micro-batches are unequal, uneven whether they
# may be; asked is what the script wrote where Trainer's own numbers stay so.
_force = {"micro": 0, "accum": 0, "samples": 0, "uneven": False, "asked": None}


def _settings():
    return _events.config().get("settings") or {}


def _wanted(micro, accum):
    """The micro-batch and accumulation to use instead of the script's."""
    s = _settings()
    m, a = s.get("micro_batch") or 0, s.get("accumulation") or 1
    if not m or _events.config().get("template"):
        return micro, accum
    if m * a != micro * accum:
        _events.emit(
            "not_applied", what="micro_batch", why="%d x %d is not the batch of the script, %d x %d" % (m, a, micro, accum)
        )
        return micro, accum
    return m, a


def _say(name, asked, got, samples=0, uneven=False, **more):
    _force.update(micro=got[0], accum=got[1], samples=samples, uneven=uneven)
    _events.emit(
        "framework",
        name=name,
        micro_batch=got[0],
        accumulation=got[1],
        asked_micro_batch=asked[0],
        asked_accumulation=asked[1],
        samples=samples,
        uneven=uneven,
        **more,
    )
    if asked != got:
        _events.emit("applied", what="micro_batch", to="%d x %d" % got)


def batch_in_force(config):
    """Rows of a micro-batch and of a step on one rank, 0 where not known; and
    whether micro-batches of unequal size are exact."""
    if _force["micro"]:
        return _force["micro"], _force["samples"] or _force["micro"] * max(1, _force["accum"]), _force["uneven"]
    s = config.get("settings") or {}
    if config.get("template") and s.get("micro_batch"):
        return s["micro_batch"], s["micro_batch"] * max(1, s.get("accumulation") or 1), False
    return 0, 0, False


def _wrap(cls, name, make):
    original = getattr(cls, name)
    wrapper = functools.wraps(original)(make(original))
    setattr(cls, name, wrapper)


# transformers


def transformers_arguments(module):
    def make(original):
        def __post_init__(self, *args, **kwargs):
            try:
                _set_arguments(self)
            except Exception as e:
                _events.emit("not_applied", what="hf_arguments", why=str(e)[:300])
            return original(self, *args, **kwargs)

        return __post_init__

    _wrap(module.TrainingArguments, "__post_init__", make)


def _set_arguments(args):
    folder = os.path.abspath(args.output_dir or "trainer_output")
    asked = (args.per_device_train_batch_size, args.gradient_accumulation_steps)
    s = _settings()
    micro, pieces, samples = s.get("micro_batch") or 0, s.get("accumulation") or 1, s.get("samples") or 0
    if samples and _force["asked"] and asked == (_force["asked"][0], pieces):
        return  # made once more from arguments that have it already
    if samples and samples == asked[0] * asked[1] and micro < asked[0]:
        # The loader's own batches stay; Trainer.get_train_dataloader cuts them.
        _force["asked"] = asked
        args.gradient_accumulation_steps = pieces
        _say("hf_trainer", asked, (micro, pieces), samples=samples, uneven=True, output_dir=folder)
        return
    got = _wanted(*asked)
    args.per_device_train_batch_size, args.gradient_accumulation_steps = got
    if asked != got:
        args.deepspeed = _deepspeed_config(getattr(args, "deepspeed", None), got)
    _say("hf_trainer", asked, got, output_dir=folder)


def _deepspeed_config(config, batch):
    """Explicit numbers in a DeepSpeed file must agree with the arguments."""
    whole = _deepspeed_read(config)
    if whole is None:
        return config
    whole = dict(whole)
    for key, value in (("train_micro_batch_size_per_gpu", batch[0]), ("gradient_accumulation_steps", batch[1])):
        if isinstance(whole.get(key), int):
            whole[key] = value
    return whole


def transformers_trainer(module):
    def make_init(original):
        def __init__(self, model=None, args=None, *more, **kwargs):
            try:
                if _settings().get("checkpointing") == "full" and args is not None:
                    if getattr(model, "supports_gradient_checkpointing", False):
                        for name in ("activation_checkpointing", "gradient_checkpointing"):
                            if hasattr(args, name):
                                setattr(args, name, True)
                        _events.emit("applied", what="checkpointing", to="full")
            except Exception as e:
                _events.emit("not_applied", what="checkpointing", why=str(e)[:300])
            out = original(self, model, args, *more, **kwargs)
            try:
                _unequal_pieces(module, self)
            except Exception as e:
                _events.emit("not_applied", what="unequal micro-batches", why=str(e)[:300])
            return out

        return __init__

    def make_loader(original):
        def get_train_dataloader(self, *args, **kwargs):
            loader = original(self, *args, **kwargs)
            if _force["asked"]:
                try:
                    from . import _pieces

                    _pieces.cut(loader, self._train_batch_size, _force["asked"][1], _force["micro"])
                except Exception as e:
                    self.args.gradient_accumulation_steps = _force["asked"][1]  # as the script wrote it
                    _events.emit("not_applied", what="unequal micro-batches", why=str(e)[:300])
            return loader

        return get_train_dataloader

    def make_train(original):
        def train(self, resume_from_checkpoint=None, *args, **kwargs):
            resume = _settings().get("resume")
            if resume and not resume_from_checkpoint:
                resume_from_checkpoint = resume
            if resume_from_checkpoint:
                try:
                    _watch_resume(self, resume_from_checkpoint)
                except Exception as e:
                    _events.emit("not_applied", what="resume", why=str(e)[:300])
            return original(self, resume_from_checkpoint, *args, **kwargs)

        return train

    _wrap(module.Trainer, "__init__", make_init)
    _wrap(module.Trainer, "train", make_train)
    _wrap(module.Trainer, "get_train_dataloader", make_loader)
    state = getattr(module, "TrainerState", None)
    if state is not None and hasattr(state, "load_from_json"):
        load = state.load_from_json.__func__

        def load_from_json(cls, path):
            out = load(cls, path)
            # Some versions take the old per-device batch from here, the very
            # one that did not fit; others only compare it.
            if _force["micro"] and getattr(out, "train_batch_size", None):
                out.train_batch_size = _force["micro"]
            return out

        state.load_from_json = classmethod(load_from_json)


def _unequal_pieces(module, trainer):
    """Reports whether unequal micro-batches are exact for this trainer: losses
    are weighted by their tokens, and its batches are the usual ones."""
    args, torch = trainer.args, sys.modules["torch"]
    exact = (
        (getattr(trainer, "model_accepts_loss_kwargs", False) or getattr(trainer, "compute_loss_func", None) is not None)
        and getattr(type(trainer), "compute_loss", None) is module.Trainer.compute_loss
        and type(trainer).get_train_dataloader is module.Trainer.get_train_dataloader
        and not isinstance(trainer.train_dataset, torch.utils.data.IterableDataset)
        and not getattr(args, "deepspeed", None)  # its engine divides by the accumulation
        and not getattr(args, "group_by_length", False)
        and getattr(args, "train_sampling_strategy", "random") in ("random", "sequential")
        and not getattr(getattr(args, "accelerator_config", None), "split_batches", False)
    )
    asked = _force["asked"]
    if asked and not exact:
        args.gradient_accumulation_steps, _force["asked"] = asked[1], None
        _events.emit("not_applied", what="unequal micro-batches", why="the losses are not weighted by their tokens")
        _say("hf_trainer", asked, asked, output_dir=os.path.abspath(args.output_dir))
    elif asked and hasattr(trainer, "get_total_train_batch_size"):
        total, pieces = trainer.get_total_train_batch_size, args.gradient_accumulation_steps
        trainer.get_total_train_batch_size = lambda a: total(a) // pieces * asked[1]
    elif exact and not asked and _force["micro"]:
        _force["uneven"] = True
        _events.emit("uneven", what="hf_trainer")


def _watch_resume(trainer, checkpoint):
    """Notes where training went on, for the supervisor to check."""
    import json

    path = checkpoint if isinstance(checkpoint, str) else trainer.args.output_dir
    state = os.path.join(path, "trainer_state.json")
    step = 0
    if os.path.exists(state):
        with open(state) as f:
            step = int(json.load(f).get("global_step", 0))
    per_step = batch_in_force(_events.config())[1]
    world = max(1, getattr(trainer.args, "world_size", 1))
    _events.emit("resume", path=str(path), step=step, samples=step * per_step * world)


# Lightning


def lightning_trainer(module):
    def make_init(original):
        def __init__(self, *args, **kwargs):
            self._unoom_asked = kwargs.get("accumulate_grad_batches", 1) or 1
            s = _settings()
            if s.get("micro_batch") and not _events.config().get("template"):
                kwargs["accumulate_grad_batches"] = s.get("accumulation") or 1
            out = original(self, *args, **kwargs)
            return out

        return __init__

    def make_fit(original):
        def fit(self, model, train_dataloaders=None, val_dataloaders=None, datamodule=None, ckpt_path=None, *more, **kwargs):
            try:
                source = train_dataloaders if train_dataloaders is not None else datamodule
                holder = source if hasattr(source, "train_dataloader") else model
                if source is not None and not hasattr(source, "train_dataloader"):
                    _resize_lightning(self, source)
                else:
                    make = holder.train_dataloader

                    def train_dataloader(*a, **k):
                        loader = make(*a, **k)
                        try:
                            _resize_lightning(self, loader)
                        except Exception as e:
                            _events.emit("not_applied", what="lightning", why=str(e)[:300])
                        return loader

                    holder.train_dataloader = train_dataloader
                resume = _settings().get("resume")
                if resume and not ckpt_path:
                    ckpt_path = resume
            except Exception as e:
                _events.emit("not_applied", what="lightning", why=str(e)[:300])
            return original(self, model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, *more, **kwargs)

        return fit

    _wrap(module.Trainer, "__init__", make_init)
    _wrap(module.Trainer, "fit", make_fit)


def _resize_lightning(trainer, loader):
    batch = getattr(loader, "batch_size", None)
    if not isinstance(batch, int):
        return
    asked = (batch, trainer._unoom_asked)
    got = _wanted(*asked)
    if got != asked:
        _resize(loader, got[0])
    trainer.accumulate_grad_batches = got[1]
    folders = [getattr(c, "dirpath", None) for c in getattr(trainer, "checkpoint_callbacks", [])]
    root = next((f for f in folders if f), None) or getattr(trainer, "default_root_dir", None)
    _say("lightning", asked, got, output_dir=os.path.abspath(root) if root else "")


def _resize(loader, micro):
    """Changes the batch of a DataLoader in place: the same samples in the same
    order, in smaller pieces."""
    sampler = loader.batch_sampler
    if sampler is None or not isinstance(getattr(sampler, "batch_size", None), int):
        raise ValueError("the DataLoader's batches are made by %s" % type(sampler).__name__)
    sampler.batch_size = micro
    object.__setattr__(loader, "batch_size", micro)


# accelerate


def accelerate(module):
    known = {"accum": 1}

    def make_init(original):
        def __init__(self, *args, **kwargs):
            known["accum"] = kwargs.get("gradient_accumulation_steps", 1) or 1
            plugin = kwargs.get("gradient_accumulation_plugin")
            if plugin is not None:
                known["accum"] = getattr(plugin, "num_steps", 1) or 1
            return original(self, *args, **kwargs)

        return __init__

    def make_loader(original):
        def prepare_data_loader(self, loader, *args, **kwargs):
            try:
                _accelerate_loader(self, loader, known)
            except Exception as e:
                _events.emit("not_applied", what="accelerate", why=str(e)[:300])
            return original(self, loader, *args, **kwargs)

        return prepare_data_loader

    def make_accumulate(original):
        def accumulate(self, *args, **kwargs):
            if not known.get("accumulates"):
                known["accumulates"] = True
                if known.get("asked"):
                    _say("accelerate", known["asked"], known["got"])
            return original(self, *args, **kwargs)

        return accumulate

    _wrap(module.Accelerator, "__init__", make_init)
    _wrap(module.Accelerator, "prepare_data_loader", make_loader)
    _wrap(module.Accelerator, "accumulate", make_accumulate)


def _accelerate_loader(accelerator, loader, known):
    """The first DataLoader with the batch that does not fit is the training's.

    Only a script that uses accelerator.accumulate() accumulates; that is noted
    at its first use, and without it nothing is reported as changeable.
    """
    if _force["micro"]:
        return  # the Trainer uses accelerate itself
    batch = getattr(loader, "batch_size", None)
    if not isinstance(batch, int) or known.get("asked"):
        return
    asked = (batch, known["accum"])
    got = _wanted(*asked)
    if got != asked:
        _resize(loader, got[0])
        accelerator.gradient_accumulation_steps = got[1]
    known.update(asked=asked, got=got)


# DeepSpeed


def deepspeed(module):
    def make(original):
        def initialize(*args, **kwargs):
            try:
                args, kwargs = _deepspeed_arguments(args, kwargs)
            except Exception as e:
                _events.emit("not_applied", what="deepspeed", why=str(e)[:300])
            return original(*args, **kwargs)

        return initialize

    module.initialize = functools.wraps(module.initialize)(make(module.initialize))


def _deepspeed_arguments(args, kwargs):
    """The arguments of deepspeed.initialize with the batch in force. The
    configuration is the argument config, or what args.deepspeed_config names."""
    if _force["micro"]:
        return args, kwargs  # Trainer's, which has it already
    holder = kwargs.get("args", args[0] if args else None)
    config, place = kwargs.get("config"), "config"
    if config is None:
        config, place = kwargs.get("config_params"), "config_params"
    if config is None:
        config, place = getattr(holder, "deepspeed_config", None), "args"
    whole = _deepspeed_read(config)
    asked = _deepspeed_batch(whole) if whole else (0, 0)
    if not asked[0]:
        return args, kwargs
    got = _wanted(*asked)
    if got != asked:
        whole = dict(whole, train_micro_batch_size_per_gpu=got[0], gradient_accumulation_steps=got[1])
        if place == "args":
            holder.deepspeed_config = whole
        else:
            kwargs = dict(kwargs, **{place: whole})
    _say("deepspeed", asked, got)
    return args, kwargs


def _deepspeed_read(config):
    import json

    if isinstance(config, str) and os.path.exists(config):
        with open(config) as f:
            return json.load(f)
    return config if isinstance(config, dict) else None


def _deepspeed_batch(config):
    """Micro-batch and accumulation, of which one may follow from the batch of
    all processes; (0, 0) where they are left to somebody else ("auto")."""
    whole, micro, accum = (
        config.get(k) for k in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if any(n is not None and not isinstance(n, int) for n in (whole, micro, accum)):
        return 0, 0
    share = (whole or 0) // int(os.environ.get("WORLD_SIZE", "1"))
    if not micro and share:
        micro = share // (accum or 1)
    if micro and not accum:
        accum = share // micro if share else 1
    return micro or 0, accum or 0
