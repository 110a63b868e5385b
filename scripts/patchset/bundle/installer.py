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
import re
import shlex
import signal
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 1 << 20


class Refused(Exception):
    """What is wrong, where, and what to do; nothing was installed."""

    def __init__(self, what, next, where=None):
        Exception.__init__(self, what)
        self.lines = [("error", what), ("where", where)]
        self.lines += [("state", "nothing was installed"), ("next", next)]


def main(argv):
    """Install; the exit code is 0, 2 for wrong usage, 4 when this machine or the bundle is not as it
    must be, and 128 and its number when a signal ends it."""
    asked = argv[:1] in (["-h"], ["--help"])
    if len(argv) != 1 or asked:
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    place = os.path.abspath(argv[0])
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        manifest = load_manifest(os.path.join(HERE, "bundle.json"))
        require_target(manifest["target"])
        require_torch(manifest.get("torch"))
        if os.path.exists(place):
            raise Refused("the folder is there already", "name a new one", place)
        install(manifest, place)
    except Refused as refused:
        return told(refused, 4)
    except OSError as error:
        what = "a file or folder can't be used: %s" % (error.strerror or error)
        after = "make room there and make it writable, or name another folder"
        return told(Refused(what, after, str(error.filename or place)), 4)
    except (EOFError, lzma.LZMAError, tarfile.TarError) as error:
        what = "the parts are what was packed, and can't be unpacked: %s" % error
        return told(Refused(what, "make the bundle again", HERE), 4)
    except KeyboardInterrupt as stopped:
        after = "run the same command again"
        return told(Refused("interrupted", after, place), 128 + stopped.args[0])
    print("installed  %s" % place)
    print("patches    %s %s" % (manifest["checkpoint"], manifest["commit"] or ""))
    print("next       . %s" % shlex.quote(os.path.join(place, "env.sh")))
    print("           python3 -m sglang.launch_server --model-path MODEL")
    return 0


def told(refused, code):
    """Print the labelled lines of a refusal; the exit code."""
    for label, text in refused.lines:
        if text:
            print("%-6s %s" % (label + ":", text), file=sys.stderr)
    return code


def interrupt(number, frame):
    """Unwind, so that what is half-done is removed."""
    raise KeyboardInterrupt(number)


def load_manifest(path):
    """What the bundle says of itself. Refuses a file that is missing, cut or another one."""
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        for part in manifest["parts"]:
            part["name"], part["sha256"]
        manifest["checkpoint"], manifest["commit"]
        manifest["target"]["python"], manifest["target"]["machine"]
    except FileNotFoundError:
        raise Refused("bundle.json is missing beside install.py", "copy it too", path)
    except (ValueError, KeyError, TypeError):
        raise Refused("bundle.json is damaged", "copy it again", path)
    return manifest


def require_target(target):
    """Refuse another Python, another machine, or a Python without torch."""
    found = "%d.%d" % sys.version_info[:2]
    if found != target["python"]:
        raise Refused(
            "the bundle is for Python %s, this is %s" % (target["python"], found),
            "run it with python%s, or make a bundle with --target-python %s"
            % (target["python"], found),
            sys.executable,
        )
    if platform.machine() != target["machine"]:
        raise Refused(
            "the bundle is for %s, this is %s"
            % (target["machine"], platform.machine()),
            "make a bundle with --machine %s" % platform.machine(),
        )
    if importlib.util.find_spec("torch") is None:
        raise Refused(
            "this Python has no torch", "install it into this Python", sys.executable
        )


def require_torch(needed):
    """Refuse a torch of another minor version than the packages are built for, whose operations they
    can't load; warn of one that differs less, or that does not tell its version."""
    if needed is None:
        return
    place, found = torch_here()
    if found is not None and found.split("+")[0] == needed:
        return
    if found is None:
        what = "the torch of this Python tells no version, and may be a stand-in"
    else:
        what = "this Python has torch %s" % found
    what += ": the packages are built for torch %s" % needed
    if found is not None and found.split(".")[:2] != needed.split(".")[:2]:
        after = "install torch==%s into this Python (%s)" % (needed, sys.executable)
        raise Refused(what, after, place)
    print("warning: %s (%s)" % (what, place), file=sys.stderr)


def torch_here():
    """The folder of the torch that this Python imports, and its version or None."""
    spec = importlib.util.find_spec("torch")
    folder = (list(spec.submodule_search_locations or ()) or [spec.origin])[0]
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
            said = re.search(r"^__version__ *= *['\"]([^'\"]+)", file.read(), re.M)
        return folder, said and said.group(1)
    except OSError:
        return folder, None


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
        what = "the part %s is missing beside install.py" % name
        raise Refused(what, "copy it too", HERE)
    if digest(path) != sha256:
        raise Refused("the part %s is damaged" % name, "copy it again", path)
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
