"""Runs a script as an attempt, as `unoom run` would start it: for tests and tools
that need the Python side alone.
"""

import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
SCRIPTS = os.path.join(HERE, "train")


class Attempt:
    """The folder of an attempt: the bootstrap with its settings, and the events."""

    def __init__(self, folder, settings=None, **config):
        self.folder, self.site = str(folder), os.path.join(folder, "site")
        shutil.copytree(os.path.join(ROOT, "bootstrap"), self.site)
        self.configure(proto=1, run="r", attempt=1, events=self.folder, code=ROOT, settings=settings or {}, **config)

    def configure(self, **config):
        """Changes what lies beside the bootstrap."""
        path = os.path.join(self.site, "unoom.json")
        if os.path.exists(path):
            with open(path) as f:
                config = dict(json.load(f), **config)
        with open(path, "w") as f:
            json.dump(config, f)

    def python(self, *argv, path=(), **env):
        """Runs the interpreter with the bootstrap, and what comes after it on its path."""
        full = dict(os.environ, PYTHONPATH=os.pathsep.join([self.site, *map(str, path)]), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        full.pop("UNOOM_DISABLE", None)
        return subprocess.run([sys.executable, *argv], env=dict(full, **env), capture_output=True, text=True)

    def events(self):
        """What each process reported: a list for each file."""
        out = []
        for name in sorted(os.listdir(self.folder)):
            if name.startswith("events."):
                with open(os.path.join(self.folder, name)) as f:
                    out.append([json.loads(line) for line in f])
        return out


def of(events, kind):
    return [e for e in events if e["kind"] == kind]
