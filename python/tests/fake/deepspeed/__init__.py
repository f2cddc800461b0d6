"""As much of DeepSpeed as its initialize has of a batch; prints what arrives."""

import json


def initialize(args=None, model=None, config=None, config_params=None, **more):
    named = getattr(args, "deepspeed_config", None)
    # deepspeed/__init__.py: one of the two, not both
    assert config is None or named is None, "configs in the arguments and in the call"
    config = config or config_params or named
    if isinstance(config, str):
        with open(config) as f:
            config = json.load(f)
    print(json.dumps(config))
