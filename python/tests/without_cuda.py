"""Lets PyTorch run without its CUDA packages, on machines without a GPU.

    python3 without_cuda.py TORCH_LIB OUT

The wheel on PyPI links to the libraries of CUDA, 3 GB of packages, even if there is no GPU. This
writes a library to OUT that has all of their functions, each of which returns an error code, and a
link to it for each missing library. With OUT in LD_LIBRARY_PATH, PyTorch finds no GPU.
"""

import collections
import pathlib
import re
import subprocess
import sys

# What cudaGetDeviceCount returns if there is no device.
NO_DEVICE = 100
# The libraries whose symbols have no versions.
UNVERSIONED = re.compile(r"(cu[A-Z]|cuFile|cusparseLt|nccl|nvshmem)")


def lines(*command):
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()


def symbols(kind, library):
    return {line.split()[-1] for line in lines("nm", "-D", kind, library)}


def missing_libraries(libraries):
    found = (line.split() for library in libraries for line in lines("ldd", library) if "not found" in line)
    return {words[0] for words in found if ".so" in words[0]}


def versions_of(missing, libraries):
    """Returns the symbol versions that the libraries need from missing ones."""
    versions, source = set(), None
    for line in (line for library in libraries for line in lines("objdump", "-p", library)):
        if required := re.match(r"\s*required from (\S+):", line):
            source = required[1]
        elif line.startswith("    0x") and source in missing:
            versions.add(line.split()[-1])
        else:
            source = None
    return versions


def write_library(path, names_of_version):
    names = sorted(set().union(*names_of_version.values()))
    code = "".join(f"long {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in names_of_version.items()
        if version
    )
    path.with_suffix(".c").write_text(code)
    path.with_suffix(".map").write_text(script)
    command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", path.with_suffix(".c"), "-o", path]
    subprocess.run([*command, f"-Wl,--version-script={path.with_suffix('.map')}"], check=True)


def main():
    libraries = sorted(pathlib.Path(sys.argv[1]).glob("*.so*"))
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True)
    missing = missing_libraries(libraries)
    versions = versions_of(missing, libraries)
    names_of_version = collections.defaultdict(set)
    for symbol in set().union(*(symbols("--undefined-only", library) for library in libraries)):
        name, _, version = symbol.replace("@@", "@").partition("@")
        if version in versions or (not version and UNVERSIONED.match(name)):
            names_of_version[version].add(name)
    write_library(out / "no_device.so", names_of_version)
    for name in missing:
        (out / name).symlink_to("no_device.so")


if __name__ == "__main__":
    main()
