"""The project lints itself: layers, sizes, stubs, docstrings, exports, and
what a build says when something is missing."""

import ast
import asyncio
import importlib
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import pyfastnet
from pyfastnet import _core

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(pyfastnet.__file__).parent
RANKS = {"base": 0, "cache": 1, "poll": 2, "net": 3, "python": 4}
MAX_FILE = 800
MAX_FUNCTION = 80

C_FILES = sorted(path for path in (ROOT / "csrc").glob("*/*.[ch]") if path.is_file())
PYTHON_FILES = sorted(
    path
    for folder in (PACKAGE, ROOT / "tests", ROOT / "benchmarks")
    for path in [*folder.glob("*.py"), *folder.glob("*.pyi")]
)


def name_of(path):
    return os.path.relpath(path, ROOT)


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


# -- C: layers and sizes ------------------------------------------------------


def includes(path):
    """(line number, "<" or '"', what is included)"""
    for number, line in enumerate(lines_of(path), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match[1], match[2]


def layer_faults(path, rank):
    for number, kind, target in includes(path):
        where = f"{name_of(path)}:{number}: {target}"
        if target == "Python.h" or target.startswith("cpython/"):
            if rank < RANKS["python"]:
                yield f"{where}: only csrc/python may know Python"
        elif kind == '"':
            folder, _, file = target.partition("/")
            if folder not in RANKS or not (ROOT / "csrc" / target).exists():
                yield f"{where}: not spelled from csrc/"
            elif RANKS[folder] > rank:
                yield f"{where}: a higher layer"
            elif file.endswith(".c"):
                yield f"{where}: a source file"


def test_there_is_a_core_in_every_layer():
    assert {path.parent.name for path in C_FILES} == set(RANKS)
    assert len(C_FILES) > 20
    assert sum(1 for path in C_FILES for _ in includes(path)) > 100


def test_includes_respect_the_layers():
    faults = [
        fault
        for path in C_FILES
        for fault in layer_faults(path, RANKS[path.parent.name])
    ]
    assert not faults, "\n".join(faults)


def test_layer_faults_are_found(tmp_path):
    path = tmp_path / "x.c"
    path.write_text(
        '#include "base/mem.h"\n#include <stdint.h>\n'
        '#include "poll/shard.h"\n#include "mem.h"\n#include <Python.h>\n'
    )
    found = [fault.split(": ", 1)[1] for fault in layer_faults(path, RANKS["cache"])]
    assert found == [
        "poll/shard.h: a higher layer",
        "mem.h: not spelled from csrc/",
        "Python.h: only csrc/python may know Python",
    ]


def test_headers_are_guarded_by_their_path():
    for path in C_FILES:
        if path.suffix == ".h":
            guard = f"FNET_{path.parent.name}_{path.stem}_H".upper()
            assert f"#ifndef {guard}\n#define {guard}\n" in path.read_text(), name_of(
                path
            )


def function_lengths(lines):
    """(line number, length) of function bodies: from a "{" in column 0 to
    the next "}" there, which is how clang-format writes functions."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start + 1
            start = None


def test_function_lengths_are_measured():
    body = ["    x = 1;"] * 5
    lines = ["int", "f(void)", "{", *body, "}", "int a[] = {", "};"]
    assert list(function_lengths(lines)) == [(3, 7)]


def test_functions_fit_a_screen():
    found = [
        (path, number, length)
        for path in C_FILES
        for number, length in function_lengths(lines_of(path))
    ]
    assert len(found) > 100
    long = [
        f"{name_of(path)}:{number}: a function of {length} lines"
        for path, number, length in found
        if length > MAX_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_files_are_of_one_idea():
    c_tests = sorted((ROOT / "tests" / "c").glob("*.[ch]"))
    long = [
        f"{name_of(path)}: {len(lines_of(path))} lines"
        for path in [*C_FILES, *c_tests, *PYTHON_FILES]
        if len(lines_of(path)) > MAX_FILE
    ]
    assert not long, "\n".join(long)


def test_open_work_names_its_issue():
    word = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b(?!\(#\d+\)| #\d+)")
    paths = [
        *C_FILES,
        *PYTHON_FILES,
        *(ROOT / "tests" / "c").glob("*"),
        ROOT / "setup.py",
        ROOT / "pyproject.toml",
        ROOT / "Makefile",
        ROOT / "README.md",
        ROOT / ".ci" / "run",
    ]
    open_work = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in paths
        if path.is_file()
        for number, line in enumerate(lines_of(path), 1)
        if word.search(line)
    ]
    assert not open_work, "\n".join(open_work)


# -- the package --------------------------------------------------------------


def test_the_version_stands_in_two_places_and_is_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pyfastnet.__version__ == project["version"]
    assert f"## {project['version']}" in (ROOT / "CHANGES.md").read_text()


def test_types_are_installed():
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_core.pyi").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_public_names_are_documented():
    assert {"new_event_loop", "EventLoop", "run"} <= set(pyfastnet.__all__)
    missing = []
    for name in pyfastnet.__all__:
        value = getattr(pyfastnet, name)
        if isinstance(value, str):
            continue
        if not value.__doc__:
            missing.append(name)
        if inspect.isclass(value):
            missing += [
                f"{name}.{method}"
                for method, function in vars(value).items()
                if not method.startswith("_")
                and callable(function)
                and not inspect.getdoc(getattr(value, method))
            ]
    assert not missing, missing


def test_modules_are_documented():
    for path in PACKAGE.glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name


# -- the stub -----------------------------------------------------------------


def stub_names(body):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def stub_classes():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [eval_base(ast.unparse(base)) for base in node.bases]
            yield node.name, set(stub_names(node.body)), bases


def eval_base(text):
    """The class that a base in the stub names: of asyncio's, or ours."""
    module, _, name = text.rpartition(".")
    return getattr(importlib.import_module(module) if module else _core, name)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def test_the_stub_has_what_the_module_has():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    names = {name for name in vars(_core) if not is_dunder(name)}
    assert set(stub_names(tree.body)) == names


def test_the_stub_has_what_the_classes_have():
    faults = []
    classes = list(stub_classes())
    assert len(classes) >= 5
    for name, stubbed, bases in classes:
        cls = getattr(_core, name)
        inherited = {n for base in bases for n in dir(base)} | set(dir(object))
        faults += [
            f"{name}.{n} is in the stub only"
            for n in sorted(stubbed)
            if not hasattr(cls, n)
        ]
        faults += [
            f"{name}.{n} is not in the stub"
            for n in sorted(set(vars(cls)) - stubbed - inherited)
            if not is_dunder(n)
        ]
    assert not faults, "\n".join(faults)


def test_stub_methods_are_callable_and_attributes_are_not():
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                method = getattr(getattr(_core, node.name), item.name)
                assert callable(method), f"{node.name}.{item.name}"
            elif isinstance(item, ast.AnnAssign):
                value = vars(getattr(_core, node.name))[item.target.id]
                assert inspect.isdatadescriptor(value) or not callable(
                    value
                ), item.target.id


def test_what_a_loop_has_stands_in_slots():
    # An instance with a dictionary makes each call of a method slower.
    loop = pyfastnet.new_event_loop()
    try:
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        assert not set(vars(loop)), "not in EventLoop.__slots__"
    finally:
        loop.close()


def test_the_methods_in_c_are_bound_to_the_class_that_is_used():
    for name in ("call_soon", "call_later", "time", "create_future", "sock_recv"):
        method = getattr(pyfastnet.EventLoop, name)
        assert method.__objclass__ is pyfastnet.EventLoop, name
    for wrong in (object, None, _core.Handle):
        with pytest.raises(TypeError):
            _core.bind_methods(wrong)


# -- the extension and its build ----------------------------------------------


def test_the_extension_exports_only_its_init_function():
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    symbols = {line.split()[-1] for line in listing.splitlines()}
    # A sanitizer adds symbols of its own.
    symbols = {name for name in symbols if not name.startswith("__")}
    assert symbols == {"PyInit__core"}


def build(tmp_path, *, before="", **environment):
    """The output of a build that must fail."""
    code = f"""
import runpy, sys
import setuptools
{before}
sys.argv = ["setup.py", "-q", "build_ext", "--build-lib", {str(tmp_path)!r},
            "--build-temp", {str(tmp_path)!r}]
runpy.run_path("setup.py", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert not list(tmp_path.rglob("*.so"))
    return done.stdout


@pytest.fixture
def compiler(tmp_path):
    """Makes a compiler that lacks a header."""

    def make(header):
        path = tmp_path / "cc"
        path.write_text(
            f"""#!/bin/sh
for last; do :; done
if grep -q '{header}' "$last"; then
    echo "$last: fatal error: {header}: No such file or directory" >&2
    exit 1
fi
"""
        )
        path.chmod(0o755)
        return str(path)

    return make


def test_a_missing_compiler_is_named(tmp_path):
    output = build(tmp_path, CC="/nonexistent/cc")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "no C compiler '/nonexistent/cc'" in output
    assert f"apt-get install gcc libc6-dev python{version}-dev" in output


def test_missing_headers_of_python_are_named(tmp_path, compiler):
    output = build(tmp_path, CC=compiler("Python.h"))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "Python.h" in output
    assert f"apt-get install python{version}-dev" in output


def test_missing_headers_of_the_c_library_are_named(tmp_path, compiler):
    output = build(tmp_path, CC=compiler("sys/epoll.h"))
    assert "apt-get install libc6-dev" in output


def test_other_systems_are_told(tmp_path):
    # Python's own configuration is read before it is called another system's.
    before = "__import__('sysconfig').get_config_vars(); sys.platform = 'darwin'"
    output = build(tmp_path, before=before)
    assert "Linux only" in output
    assert "darwin" in output


def test_an_unknown_sanitizer_is_refused(tmp_path):
    output = build(tmp_path, PYFASTNET_SANITIZE="adress")
    assert "expected one or more of address, undefined, thread" in output


# -- getting a machine ready ------------------------------------------------


@pytest.fixture
def setup_tools(tmp_path):
    """Runs `.ci/setup tools` where there is neither gcc nor make."""

    def run(uid, apt_status):
        programs = tmp_path / "bin"
        programs.mkdir()
        for name in ("bash", "env"):
            (programs / name).symlink_to(shutil.which(name))
        log = tmp_path / "apt.log"
        for name, script in {
            "id": f"echo {uid}",
            "apt-get": f'echo "$*" >>{log}; exit {apt_status}',
        }.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        done = subprocess.run(
            ["bash", ".ci/setup", "tools"],
            cwd=ROOT,
            env={"PATH": str(programs)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        called = lines_of(log) if log.exists() else []
        return done.returncode, done.stderr, called

    return run


def test_root_gets_what_is_missing_and_is_told(setup_tools):
    status, said, called = setup_tools(uid=0, apt_status=0)
    assert status == 0
    assert said == "Installing with apt-get: gcc make\n"
    assert called[0].startswith("update")
    assert called[1].startswith("install") and called[1].endswith("gcc make")


def test_others_are_told_what_to_install(setup_tools):
    status, said, called = setup_tools(uid=1000, apt_status=0)
    assert status == 1
    assert "sudo apt-get install gcc make" in said
    assert not called


def test_a_failed_installation_is_an_error(setup_tools):
    status, said, _ = setup_tools(uid=0, apt_status=100)
    assert status == 1
    assert said.endswith("error: apt-get could not install: gcc make\n")


def test_the_readme_names_targets_that_exist():
    readme = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^ +make ([a-z]+)|`make ([a-z]+)", readme, re.M))
    named = {a or b for a, b in named}
    makefile = (ROOT / "Makefile").read_text()
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^([a-z]+ )*{target}( [a-z]+)*:", makefile, re.M), target
