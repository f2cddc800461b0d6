"""Lets the CUDA build of PyTorch import on a machine without CUDA's libraries.

The wheels for Linux on x86-64 are CUDA builds: their shared objects need
libcublas, libcudnn, libnccl and others, some 2 GB that a test on the CPU never
calls. This script builds, for each such library that is missing, a stub with
the right SONAME and exactly the symbols (and version nodes) that PyTorch's own
objects ask for. Every function returns 100, cudaErrorNoDevice, so that
PyTorch sees a machine with a driver-less CUDA: torch.cuda.is_available() is
False, everything on the CPU is the real thing.

usage: stub_cuda_libs.py TORCH_LIB_DIR
"""

import os
import re
import subprocess
import sys
import tempfile

# What the dynamic loader finds by itself.
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util)\.so|ld-linux)")
# The driver: only loaded where there is one, and others look for it to find out.
DRIVER = "libcuda.so.1"

# Functions whose result is used at import, before any error check.
SPECIAL = {
    "__cudaRegisterFatBinary": "static void *h; return (long)&h;",
    "cudaGetErrorString": 'return (long)"CUDA stub of the test environment: no device";',
    "cudaGetErrorName": 'return (long)"cudaErrorNoDevice";',
    "cudaGetLastError": "return 0;",
    "cudaPeekAtLastError": "return 0;",
}


def read(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def main(lib_dir):
    objects = [os.path.join(lib_dir, n) for n in sorted(os.listdir(lib_dir)) if ".so" in n]
    objects = [o for o in objects if os.path.isfile(o)]
    present = {os.path.basename(o) for o in objects}
    missing = set()  # sonames to stub
    owner = {}  # version node -> soname
    defined, wanted = set(), set()  # names; (name, version or "")
    for obj in objects:
        for line in read("readelf", "-dW", obj).splitlines():
            m = re.search(r"\(NEEDED\).*\[(.+)\]", line)
            if m and m[1] not in present and m[1] != DRIVER and not SYSTEM.match(m[1]):
                missing.add(m[1])
        for m in re.finditer(
            r"Version: \d+\s+File: (\S+)\s+Cnt: \d+\n((?:\s+0x?[0-9a-f]+:\s+Name: .*\n)+)",
            read("readelf", "-VW", obj),
        ):
            for node in re.findall(r"Name: (\S+)", m[2]):
                owner[node] = m[1]
        for line in read("readelf", "--dyn-syms", "-W", obj).splitlines():
            f = line.split()
            if len(f) < 8 or not f[0].endswith(":"):
                continue
            bind, section, symbol = f[4], f[6], f[7]
            name, _, version = symbol.replace("@@", "@").partition("@")
            if section != "UND":
                defined.add(name)
            elif bind == "GLOBAL":
                wanted.add((name, version))
    missing = sorted(missing)
    if not missing:
        print("nothing to stub")
        return
    per = {soname: {} for soname in missing}  # soname -> version -> names
    for name, version in sorted(wanted):
        if version:
            soname = owner.get(version)
            if soname in per:
                per[soname].setdefault(version, []).append(name)
        elif name not in defined:
            # An object without version nodes does not say where its symbols
            # come from, and any library in scope will do.
            per[missing[0]].setdefault("", []).append(name)
    for soname, versions in per.items():
        build(os.path.join(lib_dir, soname), soname, versions)
    print("stubs: " + ", ".join(missing))


def build(path, soname, versions):
    code, script = [], []
    n = 0
    for version, names in sorted(versions.items()):
        for name in names:
            n += 1
            body = SPECIAL.get(name, "return 100;")
            code.append(f'long stub{n}(void) __asm__("{name}"); long stub{n}(void) {{ {body} }}')
        if version:
            script.append(version + " { global: " + " ".join(f'"{x}";' for x in names) + " };")
    if not versions:
        code.append("long nothing_is_called_here(void) { return 100; }")
    with tempfile.TemporaryDirectory() as d:
        source, map_file = os.path.join(d, "s.c"), os.path.join(d, "s.map")
        with open(source, "w") as f:
            f.write("\n".join(code) + "\n")
        with open(map_file, "w") as f:
            f.write("\n".join(script) + "\n")
        cmd = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", path + ".part", source]
        cmd += ["-Wl,-soname," + soname]
        if script:
            cmd.append("-Wl,--version-script," + map_file)
        subprocess.run(cmd, check=True)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1])
