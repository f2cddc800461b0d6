"""Records the flags of Megatron-LM that emitted files may use, with their values,
as python/tests/megatron_flags.json.

usage: megatron_flags.py CHECKOUT COMMIT >python/tests/megatron_flags.json
"""

import argparse
import json
import re
import sys
import typing

import emit_absent
import torch  # noqa: F401  before the stand-ins
import typing_extensions

WANTED = re.compile(
    "--(micro-batch-size|global-batch-size|seq-length|.*model-parallel-size|.*virtual-pipeline-stage|context-parallel-size|cp-comm-type"
    "|sequence-parallel|use-.*fsdp.*|use-distributed-optimizer|.*-sharding-strategy|num-distributed-optimizer-instances|bf16|fp16|fp8-(format|recipe)"
    "|recompute-.*|attention-backend|cross-entropy-.*|optimizer|optimizer-.*offload.*|use-precision-aware-optimizer|weight-decay|.*cpu-offload.*"
    "|fine-grained-activation-offloading|offload-modules|ckpt-format|init-model-with-meta-device|no-gradient-accumulation-fusion)"
)


def kind(action):
    if action.nargs == 0:
        return "switch"
    if action.choices:
        return [getattr(c, "name", c) for c in action.choices]
    return {int: "int", float: "float"}.get(action.type, "str")


def main():
    checkout, commit = sys.argv[1:]
    if not hasattr(typing, "override"):  # its sources are for Python 3.12
        typing.override = typing_extensions.override
    sys.path.insert(0, checkout)
    emit_absent.install()
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser()
    add_megatron_arguments(parser)
    flags = {o: kind(a) for a in parser._actions for o in a.option_strings if WANTED.fullmatch(o)}
    json.dump({"source": "NVIDIA/Megatron-LM megatron/training/arguments.py", "commit": commit, "flags": dict(sorted(flags.items()))}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
