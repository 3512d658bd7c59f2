"""Builds pyfastnet._core, the C extension; all else stands in pyproject.toml.

Environment variables that change the build:

    PYFASTNET_DEBUG=1          no optimisation, every assertion (FNET_DEBUG=2)
    PYFASTNET_SANITIZE=LIST    address, undefined, thread; comma-separated
    PYFASTNET_WERROR=1         a warning is an error
"""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

FOLDERS = ("base", "cache", "poll", "net", "python")
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wconversion",
    "-Wno-unused-parameter",
]
SANITIZERS = ("address", "undefined", "thread")

# What the probes compile: the C library's and kernel's headers, then Python's.
LIBC_PROBE = "#include <stdatomic.h>\n#include <sys/epoll.h>\n"
PYTHON_PROBE = LIBC_PROBE + "#include <Python.h>\n"


def enabled(name):
    return os.environ.get(name, "") not in ("", "0")


def sanitizers():
    chosen = [
        s for s in os.environ.get("PYFASTNET_SANITIZE", "").split(",") if s
    ]
    for name in chosen:
        if name not in SANITIZERS:
            raise SetupError(
                f"PYFASTNET_SANITIZE={name!r}: expected one or more of "
                + ", ".join(SANITIZERS)
            )
    return chosen


def compile_flags():
    flags = ["-std=c11", "-fvisibility=hidden", "-pthread", *WARNINGS]
    chosen = sanitizers()
    if enabled("PYFASTNET_DEBUG"):
        flags += ["-O0", "-g", "-UNDEBUG", "-DFNET_DEBUG=2"]
    elif chosen:
        flags += ["-O1", "-g", "-UNDEBUG"]
    else:
        flags += ["-O3", "-flto=auto", "-DNDEBUG"]
    if enabled("PYFASTNET_DEBUG") or chosen:
        # Debian's Python passes -D_FORTIFY_SOURCE=2, which warns without
        # optimisation and hides calls from the sanitizers.
        flags += ["-U_FORTIFY_SOURCE"]
    if chosen:
        flags += [
            "-fsanitize=" + ",".join(chosen),
            "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer",
        ]
    if enabled("PYFASTNET_WERROR"):
        flags += ["-Werror"]
    return flags


def link_flags():
    flags = ["-pthread"]
    if sanitizers():
        flags += ["-fsanitize=" + ",".join(sanitizers())]
    return flags


def compiles(command, source):
    """None if `source` compiles, else what the compiler said."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe.c")
        with open(path, "w") as file:
            file.write(source)
        done = subprocess.run(
            [*command, "-std=c11", "-fsyntax-only", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    return None if done.returncode == 0 else done.stdout.strip()


NOT_LINUX = """\
pyfastnet runs on Linux only: its core is built on epoll and eventfd, which
{platform} does not have.  On other systems use asyncio's own event loop."""

NO_COMPILER = """\
pyfastnet is written in C, and there is no C compiler {compiler!r} here.
On Debian and Ubuntu install it with
    sudo apt-get install gcc libc6-dev python{version}-dev"""

NO_LIBC_HEADERS = """\
{compiler} does not find the headers of the C library:
{said}
On Debian and Ubuntu install them with
    sudo apt-get install libc6-dev"""

NO_PYTHON_HEADERS = """\
The headers of Python {version} (Python.h) are not in {folder}:
{said}
On Debian and Ubuntu install them with
    sudo apt-get install python{version}-dev
(python3-dev for the system's own Python 3)."""


class BuildExt(build_ext):
    """build_ext that says what is missing, and notices changed flags."""

    def run(self):
        if not sys.platform.startswith("linux"):
            raise SetupError(NOT_LINUX.format(platform=sys.platform))
        super().run()

    def build_extensions(self):
        for extension in self.extensions:
            extension.extra_compile_args = compile_flags()
            extension.extra_link_args = link_flags()
        self.check_tools()
        self.rebuild_if_flags_changed()
        super().build_extensions()

    def check_tools(self):
        command = list(self.compiler.compiler)
        names = {
            "compiler": command[0],
            "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
            "folder": sysconfig.get_path("include"),
        }
        if shutil.which(command[0]) is None:
            raise SetupError(NO_COMPILER.format(**names))
        said = compiles(command, LIBC_PROBE)
        if said is not None:
            raise SetupError(NO_LIBC_HEADERS.format(said=said, **names))
        include = [f"-I{folder}" for folder in self.include_dirs]
        said = compiles(command + include, PYTHON_PROBE)
        if said is not None:
            raise SetupError(NO_PYTHON_HEADERS.format(said=said, **names))

    def rebuild_if_flags_changed(self):
        """setuptools compares times only: a debug build would stay in the
        place of a release build."""
        flags = repr((self.compiler.compiler, compile_flags(), link_flags()))
        name = "flags-inplace" if self.inplace else "flags"
        path = os.path.join(self.build_temp, name)
        try:
            with open(path) as file:
                same = file.read() == flags
        except FileNotFoundError:
            same = False
        if not same:
            self.force = True
            os.makedirs(self.build_temp, exist_ok=True)
            with open(path, "w") as file:
                file.write(flags)


setup(
    ext_modules=[
        Extension(
            "pyfastnet._core",
            sources=sorted(
                path
                for folder in FOLDERS
                for path in glob.glob(f"csrc/{folder}/*.c")
            ),
            depends=sorted(glob.glob("csrc/*/*.h")),
            include_dirs=["csrc"],
        )
    ],
    cmdclass={"build_ext": BuildExt},
)
