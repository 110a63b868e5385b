#!/usr/bin/env python3
"""Install the bundle that lies beside this file: python3 install.py DIR

Needs this Python, its torch, and nothing else. Checks every part, then the whole, then unpacks into a
new folder. It is either complete or not there.
"""

import hashlib
import importlib.util
import json
import lzma
import os
import platform
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 1 << 20


class Refused(Exception):
    """What is wrong, and what to do."""


def main(argv):
    """Install; the exit code is 0, 2 for wrong usage, 4 when this machine or the bundle is not as it must be."""
    if len(argv) != 1 or argv[0] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        return 2
    place = os.path.abspath(argv[0])
    try:
        with open(os.path.join(HERE, "bundle.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        require_target(manifest["target"])
        if os.path.exists(place):
            raise Refused("%s is there already: name a new folder" % place)
        install(manifest, place)
    except Refused as refused:
        print("error: %s" % refused, file=sys.stderr)
        return 4
    except (OSError, ValueError, KeyError, lzma.LZMAError, tarfile.TarError) as error:
        print("error: the bundle can't be installed: %r" % error, file=sys.stderr)
        return 4
    print("installed  %s" % place)
    print("patches    %s %s" % (manifest["checkpoint"], manifest["commit"] or ""))
    print("next       . %s" % os.path.join(place, "env.sh"))
    print("           python3 -m sglang.launch_server --model-path MODEL")
    return 0


def require_target(target):
    """Refuse another Python, another machine, or a Python without torch."""
    found = "%d.%d" % sys.version_info[:2]
    if found != target["python"]:
        raise Refused(
            "the bundle is for Python %s, this is %s: run it with python%s"
            % (target["python"], found, target["python"])
        )
    if platform.machine() != target["machine"]:
        raise Refused(
            "the bundle is for %s, this is %s" % (target["machine"], platform.machine())
        )
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            "this Python (%s) has no torch: install it first" % sys.executable
        )


def install(manifest, place):
    """Check, join and unpack the parts; the folder appears as a whole."""
    for part in manifest["parts"]:
        check(part["name"], part["sha256"])
    parent, name = os.path.split(place)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="." + name + "-", dir=parent) as scratch:
        # Made inside, where it gets the usual permissions and not those of a scratch folder.
        spare = os.path.join(scratch, name)
        os.mkdir(spare)
        whole = Joined([part["name"] for part in manifest["parts"]])
        with lzma.open(whole) as plain:
            with tarfile.open(fileobj=plain, mode="r|") as archive:
                # From 3.12 on Python asks how far the archive is trusted; before it can't be told.
                safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(spare, **safe)
        with open(os.path.join(spare, "env.sh"), "w", encoding="utf-8") as file:
            file.write(exported("PYTHONPATH", os.path.join(place, "site")))
            file.write(exported("PATH", os.path.join(place, "site", "bin")))
            if os.path.isdir(os.path.join(spare, "kernels")):
                kernels = quoted(os.path.join(place, "kernels"))
                file.write("export TVM_FFI_CACHE_DIR=%s\n" % kernels)
        os.rename(spare, place)


def exported(variable, folder):
    """A line for a shell that puts a folder before the others of a variable."""
    word = quoted(folder)
    return "export %s=%s${%s:+:$%s}\n" % (variable, word, variable, variable)


def quoted(folder):
    """A folder as one word of a shell."""
    return "'%s'" % folder.replace("'", "'\\''")


def check(name, sha256):
    """Refuse a part that is missing or has other bytes."""
    path = os.path.join(HERE, name)
    if not os.path.isfile(path):
        raise Refused("the part %s is missing beside install.py: copy it too" % name)
    if digest(path) != sha256:
        raise Refused("the part %s is damaged: copy it again" % name)
    print("checked %s" % name, file=sys.stderr)


def digest(path):
    """The sha256 of a file's bytes."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            if not block:
                return found.hexdigest()
            found.update(block)


class Joined:
    """The parts as one file to read."""

    def __init__(self, names):
        self._names = list(names)
        self._file = None

    def read(self, size=-1):
        """Up to size bytes of what is left; empty at the end."""
        while True:
            if self._file is None:
                if not self._names:
                    return b""
                self._file = open(os.path.join(HERE, self._names.pop(0)), "rb")
            data = self._file.read(size)
            if data:
                return data
            self._file.close()
            self._file = None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
