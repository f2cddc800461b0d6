"""Reads emitted files with the libraries that they are for.

usage: emit_check.py FOLDER [TARGET...]

FOLDER has one folder for each job, named NUMBER-TARGET. Prints a JSON line for
each: {"job": ..., "ok": ..., "error": ...}; where a library cannot be had, one
line {"skip": TARGET, "why": ...}. Ends with {"done": number of jobs}.
"""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import types
import warnings

import emit_absent
from emit_absent import AbsentModule, bare

os.environ.update(DISABLE_VERSION_CHECK="1", DS_ACCELERATOR="cpu", TOKENIZERS_PARALLELISM="false", CUDA_VISIBLE_DEVICES="", RAY_TRAIN_V2_ENABLED="1", ACCELERATE_USE_CPU="1")
warnings.simplefilter("ignore")


def load(path):
    spec = importlib.util.spec_from_file_location("emitted_" + path.parent.name.replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def facts(folder):
    """The job that the files of a folder were written for."""
    return json.loads((folder / "job.json").read_text())


@contextlib.contextmanager
def inside(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def env_clean():
    for name in list(os.environ):
        if name.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_", "FP8_")) and name != "ACCELERATE_USE_CPU":
            del os.environ[name]


def pretend():
    """What a machine with GPUs has: a device to name, and bitsandbytes."""
    import importlib.metadata

    import accelerate.utils.dataclasses as d
    import torch

    d.is_cuda_available = lambda *a, **k: True
    torch.cuda.current_device = lambda: 0
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.48.2" if name == "bitsandbytes" else version(name)


class HF:
    def __init__(self):
        import transformers
        import peft

        self.t, self.peft = transformers, peft

    def check(self, folder):
        env_clean()
        m = load(folder / "training_args.py")
        if "deepspeed" in m.ARGS:
            of_world(self.t.TrainingArguments, folder)
        with inside(folder):
            args = m.training_arguments(output_dir="out", use_cpu=True)
        for key, value in m.ARGS.items():
            assert hasattr(args, key), key
            if key in ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16"):
                assert getattr(args, key) == value, key
        if "deepspeed" in m.ARGS:
            # Compares the file with the arguments, and refuses what differs.
            c = args.hf_deepspeed_config
            c.trainer_config_finalize(args, types.SimpleNamespace(config=self.t.LlamaConfig(hidden_size=64)), 10)
            deepspeed(c.config, m.ARGS["per_device_train_batch_size"])
        if "deepspeed" in m.ARGS:
            from transformers.integrations.deepspeed import unset_hf_deepspeed_config

            unset_hf_deepspeed_config()
        config = self.t.LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
        if m.MODEL["attn_implementation"] in ("eager", "sdpa"):
            kwargs = dict(m.MODEL)
            import torch

            dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype")
            self.t.AutoModelForCausalLM.from_config(config, **kwargs, dtype=getattr(torch, dtype))
        if hasattr(m, "LORA"):
            self.peft.LoraConfig(**m.LORA)
        if hasattr(m, "QUANTIZATION"):
            self.t.BitsAndBytesConfig(**m.QUANTIZATION)
        if hasattr(args, "fsdp_plugin_args") and args.fsdp_plugin_args:
            from accelerate import FullyShardedDataParallelPlugin

            FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
        env_clean()


def of_world(cls, folder):
    """Lets arguments be those of one process of as many as the file is for."""
    c = json.loads((folder / "ds_config.json").read_text())
    world = c["train_batch_size"] // (c["train_micro_batch_size_per_gpu"] * c["gradient_accumulation_steps"])
    cls.world_size = property(lambda self: world)


def deepspeed(config, micro):
    from deepspeed.runtime.config import DeepSpeedConfig

    class World:
        """The mesh of processes that the file was written for."""

        def get_sequence_parallel_world_size(self):
            return 1

    if any(v == "auto" for v in flat(config)):
        raise AssertionError("an auto was left: %s" % config)
    world = config["train_batch_size"] // (micro * config["gradient_accumulation_steps"])
    import deepspeed.comm as dist

    dist.is_initialized = lambda: True
    dist.get_world_size = lambda *a: world
    dist.get_rank = lambda *a: 0
    c = DeepSpeedConfig(config)
    assert c.train_batch_size == config["train_batch_size"] and c.zero_optimization_stage == config["zero_optimization"]["stage"]


def flat(x):
    for v in x.values() if isinstance(x, dict) else x:
        if isinstance(v, (dict, list)):
            yield from flat(v)
        else:
            yield v


class DeepSpeed:
    def __init__(self):
        import deepspeed.runtime.config  # noqa: F401

    def check(self, folder):
        config = json.loads((folder / "ds_config.json").read_text())
        deepspeed(config, config["train_micro_batch_size_per_gpu"])


class Accelerate:
    def __init__(self):
        from accelerate.commands.config.config_args import load_config_from_file
        self.load = load_config_from_file

    def check(self, folder):
        env_clean()
        path = folder / "accelerate.yaml"
        config = self.load(str(path))
        import accelerate.utils.launch
        import accelerate.commands.launch as launch
        from accelerate.utils import FullyShardedDataParallelPlugin
        from accelerate.utils.launch import prepare_multi_gpu_env

        with inside(folder):
            args, _ = launch.launch_command_parser().parse_known_args(["--config_file", str(path), "train.py"])
            accelerate.utils.launch.is_fp8_available = lambda *a: True
            args, defaults, mp = launch._validate_launch_command(args)
            args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config) if defaults.deepspeed_config else ""
            if args.use_deepspeed or args.use_fsdp or args.multi_gpu:
                if args.use_deepspeed:
                    from accelerate.utils.launch import prepare_deepspeed_cmd_env

                    if args.num_machines == 1:
                        _, env = prepare_deepspeed_cmd_env(args)
                else:
                    env = prepare_multi_gpu_env(args)
            if args.use_fsdp:
                os.environ.update({k: v for k, v in env.items() if k.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_"))})
                p = FullyShardedDataParallelPlugin()
                assert p.fsdp_version == config.fsdp_config["fsdp_version"]
                assert p.activation_checkpointing == config.fsdp_config["fsdp_activation_checkpointing"]
                if config.parallelism_config:
                    from accelerate.parallelism_config import ParallelismConfig

                    pc = ParallelismConfig()
                    assert pc.total_size == config.num_processes, (pc, config.num_processes)
            if args.use_deepspeed:
                c = json.loads((folder / "ds_config.json").read_text())
                deepspeed(c, c["train_micro_batch_size_per_gpu"])
        env_clean()


class Torchtitan:
    """The TOML of 0.2, or the module of 0.3, by the version that is installed."""

    def __init__(self):
        import importlib.metadata

        self.modern = importlib.metadata.version("torchtitan") >= "0.3"
        if not self.modern:
            bare("torchtitan")
        from torchtitan.config import ConfigManager

        self.manager = ConfigManager
        if self.modern:
            import torchtitan.components.quantization as quantization

            for module in (quantization.float8, quantization.mx):
                module.has_cuda_capability = lambda *a: True

    def check(self, folder):
        job = facts(folder)
        c = self.module(folder) if self.modern else self.toml(folder)
        p, t = c.parallelism, c.training
        batch = p.data_parallel_replicate_degree * p.data_parallel_shard_degree
        steps, rest = divmod(t.global_batch_size, t.local_batch_size * batch)
        assert not rest
        micro = p.pipeline_parallel_microbatch_size if p.pipeline_parallel_degree > 1 else t.local_batch_size
        assert micro == job["micro_batch"] and steps * t.local_batch_size // micro == job["accumulation"]
        if p.pipeline_parallel_degree > 1:
            assert t.local_batch_size // micro >= p.pipeline_parallel_degree
        assert t.seq_len == job["seq"] and p.tensor_parallel_degree == job["parallel"]["tensor"]
        ranks = batch * p.tensor_parallel_degree * p.context_parallel_degree * p.pipeline_parallel_degree
        assert ranks == job["world"], ranks

    def toml(self, folder):
        c = self.manager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
        import ast

        tree = ast.parse(next(pathlib.Path(sys.modules["torchtitan"].__path__[0], "models", c.model.name).glob("__init__.py")).read_text())
        keys = {k.value for n in ast.walk(tree) if isinstance(n, ast.Dict) for k in n.keys if isinstance(k, ast.Constant)}
        assert c.model.flavor in keys, c.model.flavor
        return c

    def module(self, folder):
        from torchtitan.distributed.parallel_dims import ParallelDims

        sys.path.insert(0, str(folder))
        sys.modules.pop("torchtitan_config", None)
        try:
            c = self.manager().parse_args(["--module", "torchtitan_config", "--config", "unoom"])
        finally:
            sys.path.remove(str(folder))
        ParallelDims.from_config(c.parallelism, facts(folder)["world"])
        kind = type(c.activation_checkpoint).__qualname__.removesuffix("AC.Config").lower()
        assert kind.replace("nonetype", "none") == facts(folder)["checkpointing"], kind
        return c


class Megatron:
    """The flags: read by the parser of a checkout of Megatron-LM and checked as its
    training does, where UNOOM_MEGATRON names one. PyPI has megatron-core alone, so
    without a checkout they are read by a parser of the recorded flags, and the
    values go into the core's own configuration classes.
    """

    def __init__(self):
        import typing

        import typing_extensions

        if not hasattr(typing, "override"):  # its sources are for Python 3.12
            typing.override = typing_extensions.override
        self.checkout = os.environ.get("UNOOM_MEGATRON", "")
        if self.checkout:
            sys.path.insert(0, self.checkout)
            from megatron.training import arguments

            # What a machine with Hopper cards and Transformer Engine has.
            arguments.get_device_arch_version = lambda: 9
            sys.modules["megatron.core.transformer.transformer_config"].is_te_min_version = lambda *a, **k: True
            self.arguments = arguments
        else:
            from megatron.core.distributed import DistributedDataParallelConfig
            from megatron.core.optimizer import OptimizerConfig
            from megatron.core.transformer import TransformerConfig

            self.core = TransformerConfig, DistributedDataParallelConfig, OptimizerConfig
            self.recorded = recorded_flags()

    def check(self, folder):
        job = facts(folder)
        script = 'set -eu; cd "$1"; . ./megatron_args.sh; env | grep ^CUDA_DEVICE_MAX || true; printf "%s\\n" "${MEMORY_ARGS[@]}"'
        lines = subprocess.run(["bash", "-c", script, "bash", str(folder)], check=True, capture_output=True, text=True).stdout.splitlines()
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        if lines[0].startswith("CUDA_DEVICE_MAX"):
            os.environ.update([lines.pop(0).split("=")])
        args = self.parse(lines, job) if self.checkout else self.core_classes(lines, job)
        p = job["parallel"]
        assert args.micro_batch_size == job["micro_batch"] and args.seq_length == job["seq"]
        batch = args.global_batch_size // (args.micro_batch_size * max(p["data"], 1))
        assert batch == max(job["accumulation"], 1), batch
        assert args.tensor_model_parallel_size == p["tensor"] and args.pipeline_model_parallel_size == p["pipeline"]
        assert (args.recompute_granularity or "none") == job["checkpointing"]
        assert bool(args.bf16) == (job["precision"] in ("bf16", "amp-bf16")), args.bf16

    def parse(self, lines, job):
        """As pretrain_gpt.py starts, with the network's flags of the job."""
        os.environ.update(WORLD_SIZE=str(job["world"]), RANK="0", LOCAL_RANK="0")
        network = [
            "--num-layers", job["layers"], "--hidden-size", job["hidden"], "--ffn-hidden-size", job["ffn"], "--num-attention-heads", job["heads"],
            "--max-position-embeddings", max(job["max_seq"], job["seq"]), "--tokenizer-type", "NullTokenizer", "--vocab-size", job["vocab"],
            "--lr", "1e-5", "--train-iters", "10", "--swiglu", "--position-embedding-type", "rope", "--no-rope-fusion", "--disable-bias-linear",
        ]  # fmt: skip
        if job["kv_heads"] != job["heads"]:
            network += ["--group-query-attention", "--num-query-groups", job["kv_heads"]]
        if job["experts"]:
            network += ["--num-experts", job["experts"]]
        sys.argv = ["pretrain_gpt.py"] + [str(x) for x in network] + lines
        args = self.arguments.parse_args()
        self.arguments.validate_args(args)
        self.arguments.core_transformer_config_from_args(args)
        assert args.data_parallel_size == max(job["parallel"]["data"], 1), args.data_parallel_size
        return args

    def core_classes(self, lines, job):
        import dataclasses

        import torch

        args = self.recorded.parse_args(lines)
        transformer, ddp, optimizer = self.core
        given = {k: v for k, v in vars(args).items() if v is not None}
        given["params_dtype"] = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
        given["pipeline_dtype"] = given["params_dtype"]
        if args.num_layers_per_virtual_pipeline_stage:
            given["virtual_pipeline_model_parallel_size"] = job["layers"] // args.pipeline_model_parallel_size // args.num_layers_per_virtual_pipeline_stage
        given.update(num_layers=job["layers"], hidden_size=job["hidden"], num_attention_heads=job["heads"], num_query_groups=job["kv_heads"])
        if job["experts"]:
            given.update(num_moe_experts=job["experts"], moe_router_topk=2, add_bias_linear=False)
        for cls in (transformer, ddp, optimizer):
            if cls is optimizer and args.use_precision_aware_optimizer:
                continue  # asks for Transformer Engine
            cls(**{f.name: given[f.name] for f in dataclasses.fields(cls) if f.init and f.name in given})
        return args


def recorded_flags():
    """The parser of python/tests/megatron_flags.json."""
    import argparse

    record = json.loads(pathlib.Path(__file__).with_name("megatron_flags.json").read_text())
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    kinds = {"int": int, "float": float, "str": str}
    for name, kind in record["flags"].items():
        if kind == "switch":
            parser.add_argument(name, action="store_true")
        elif isinstance(kind, list):
            parser.add_argument(name, choices=kind)
        else:
            parser.add_argument(name, type=kinds[kind])
    return parser


class Axolotl:
    def __init__(self):
        from axolotl.utils.dict import DictDefault
        from axolotl.utils.schemas.config import AxolotlConfigWCapabilities
        from axolotl.integrations.liger.args import LigerArgs
        from axolotl.integrations.cut_cross_entropy.args import CutCrossEntropyArgs

        # A plugin's arguments count, with their defaults, where it is named.
        self.base = AxolotlConfigWCapabilities
        self.plugins = {"LigerPlugin": LigerArgs, "CutCrossEntropyPlugin": CutCrossEntropyArgs}

    def check(self, folder):
        import yaml

        data = yaml.safe_load((folder / "axolotl.yaml").read_text())
        named = tuple(self.plugins[p.rsplit(".", 1)[1]] for p in data.get("plugins", []))
        config = type("Config", (self.base, *named), {})
        known = set(config.model_fields)
        for key in data:
            assert key in known, "unknown key " + key
        n = 8
        cap = {"bf16": True, "fp8": True, "n_gpu": n, "compute_capability": "sm_90"}
        with contextlib.redirect_stderr(io.StringIO()):
            config(**data, capabilities=cap, env_capabilities={"torch_version": "2.9.1"})
        if "fsdp_config" in data:
            from axolotl.utils.schemas.fsdp import FSDPConfig

            assert set(data["fsdp_config"]) <= set(FSDPConfig.model_fields), data["fsdp_config"]


class LLaMAFactory:
    def __init__(self):
        from transformers import HfArgumentParser
        from llamafactory.hparams.data_args import DataArguments
        from llamafactory.hparams.finetuning_args import FinetuningArguments
        from llamafactory.hparams.model_args import ModelArguments
        from llamafactory.hparams.training_args import TrainingArguments

        from llamafactory.hparams.parser import _verify_model_args as verify

        self.verify = verify
        self.parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments, FinetuningArguments))

    def check(self, folder):
        import yaml

        env_clean()
        data = yaml.safe_load((folder / "llamafactory.yaml").read_text())
        data["use_cpu"] = True
        with inside(folder):
            model, rest, train, tune = self.parser.parse_dict(data)
        self.verify(model, rest, tune)
        assert not (tune.pure_bf16 and train.fp16)
        env_clean()


class SkyPilot:
    def __init__(self):
        bare("sky")
        # The schema needs none of the backends, which the errors import.
        sys.modules["sky.exceptions"] = AbsentModule("sky.exceptions")
        import jsonschema
        from sky.utils import schemas

        self.schemas, self.js = schemas, jsonschema

    def check(self, folder):
        import yaml

        data = yaml.safe_load((folder / "sky.yaml").read_text())
        self.js.validate(data, self.schemas.get_task_schema())
        self.js.validate(data["resources"], self.schemas.get_resources_schema())


class Ray:
    def __init__(self):
        from ray.train import FailureConfig, RunConfig, ScalingConfig

        self.of = FailureConfig, RunConfig, ScalingConfig

    def check(self, folder):
        m = load(folder / "ray_train.py")
        failure, run, scaling = self.of
        run(name="unoom", failure_config=failure(**m.FAILURE))
        s = scaling(**m.SCALING)
        assert s.num_workers == m.SCALING["num_workers"]
        assert m.SCRIPT


class PyTorch:
    """Loads the module; python/tests/emit_gradients.py runs it."""

    def __init__(self):
        import torch

        self.torch = torch

    def check(self, folder):
        class Fake(types.ModuleType):
            pass

        if "import bitsandbytes" in (folder / "train_pytorch.py").read_text():
            sys.modules.setdefault("bitsandbytes", AbsentModule("bitsandbytes"))
        m = load(folder / "train_pytorch.py")
        assert callable(m.wrap) and callable(m.train_step) and m.MICRO_BATCH and m.ACCUMULATION


CHECKERS = {
    "hf": HF, "deepspeed": DeepSpeed, "accelerate": Accelerate, "torchtitan": Torchtitan, "axolotl": Axolotl,
    "llamafactory": LLaMAFactory, "skypilot": SkyPilot, "ray": Ray, "pytorch": PyTorch, "megatron": Megatron,
}  # fmt: skip


def main():
    import torch  # noqa: F401  before the stand-ins, which it would ask for
    import transformers  # noqa: F401

    emit_absent.install()
    pretend()
    root = pathlib.Path(sys.argv[1])
    wanted = sys.argv[2:] or list(CHECKERS)
    done = 0
    for target in wanted:
        try:
            checker = CHECKERS[target]()
        except Exception as e:
            print(json.dumps({"skip": target, "why": "%s: %s" % (type(e).__name__, e)}), flush=True)
            continue
        for folder in sorted(root.glob("*-" + target)):
            error = ""
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    checker.check(folder)
            except (Exception, SystemExit) as e:
                import traceback

                frames = traceback.extract_tb(e.__traceback__)[-4:]
                where = " < ".join("%s:%d" % (os.path.basename(f.filename), f.lineno) for f in reversed(frames))
                error = "%s: %s (%s)" % (type(e).__name__, e, where)
            done += 1
            print(json.dumps({"job": folder.name, "ok": not error, "error": error[:600]}), flush=True)
    print(json.dumps({"done": done}))


if __name__ == "__main__":
    main()
