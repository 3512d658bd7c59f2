# What .ci/setup and .ci/run share; sourced, from the root of the repository.
# shellcheck shell=bash

# The Pythons that the tests run on; a newer one is taken only where none of
# these is found.
TESTED_MINORS="13 12 11"

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# install_packages NAME...: Debian packages, or a message that names them.
install_packages() {
    local as_root=() said
    if ! have apt-get; then
        die "please install, by whatever name your system has for them: $*"
    fi
    if [ "$(id -u)" -ne 0 ]; then
        if ! have sudo || ! { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
            die "missing packages; please run: sudo apt-get install $*"
        fi
        as_root=(sudo)
    fi
    say "Installing with apt-get: $*"
    if ! said=$({ "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@"; } 2>&1 </dev/null); then
        say "$said"
        die "apt-get could not install: $*"
    fi
}

# need_compiler: gcc with the C library's headers, and make.
need_compiler() {
    local missing=()
    have gcc || missing+=(gcc)
    have make || missing+=(make)
    if ! [ -e /usr/include/stdio.h ] && have dpkg; then
        missing+=(libc6-dev)
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
}

# need_servers: what tests/clients talks to.
need_servers() {
    local missing=()
    have redis-server || missing+=(redis-server)
    have initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ||
        missing+=(postgresql)
    if [ ${#missing[@]} -gt 0 ]; then
        install_packages "${missing[@]}"
    fi
}

# describe_python PROGRAM: "MINOR MICRO HEADERS VENV PATH" of a released
# CPython >= 3.11 with a GIL; else nothing.
describe_python() {
    "$1" -I - 2>/dev/null <<'PYTHON' || true
import importlib.util, os, sys, sysconfig
version = sys.version_info
if (sys.implementation.name == "cpython" and (3, 11) <= version < (4,)
        and version.releaselevel == "final"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")):
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    print(version.minor, version.micro, int(os.path.exists(header)),
          int(importlib.util.find_spec("ensurepip") is not None), sys.executable)
PYTHON
}

# list_pythons: descriptions of all that are on PATH or in pyenv.
list_pythons() {
    local program
    {
        for program in python3 python3.1{1,2,3,4,5,6,7,8,9}; do
            type -aP "$program" || true
        done
        for program in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python; do
            if [ -x "$program" ]; then
                echo "$program"
            fi
        done
    } | sort -u | while read -r program; do
        describe_python "$program"
    done
}

# missing_parts DESCRIPTION: the packages that complete a Python of the
# system's own, or "never" for another one.
missing_parts() {
    local minor headers venv path
    read -r minor _ headers venv path <<<"$1"
    if [ "$headers$venv" != 11 ]; then
        case $path in
        /usr/bin/*) ;;
        *) echo never && return ;;
        esac
    fi
    [ "$headers" = 1 ] || echo "python3.$minor-dev"
    [ "$venv" = 1 ] || echo "python3.$minor-venv"
}

# shellcheck disable=SC2120 # .ci/run passes a minor
# find_python [MINOR]: prints the path of the Python 3.MINOR to use, or of the
# newest tested one; installs its headers and venv where they are missing.
# Prints nothing if there is none.
find_python() {
    local all minor line parts
    all=$(list_pythons | sort -k1,1nr -k2,2nr)
    for minor in ${1:-$TESTED_MINORS 14 15 16 17 18 19}; do
        # A complete one before one that packages have to complete.
        while read -r line; do
            if [ "${line%% *}" = "$minor" ] && [ -z "$(missing_parts "$line")" ]; then
                echo "${line#* * * * }" && return
            fi
        done <<<"$all"
        while read -r line; do
            if [ "${line%% *}" = "$minor" ]; then
                parts=$(missing_parts "$line")
                if [ "$parts" != never ]; then
                    # shellcheck disable=SC2086 # one word per package
                    install_packages $parts
                    echo "${line#* * * * }" && return
                fi
            fi
        done <<<"$all"
    done
}

# need_python: as find_python, and installs Debian's where there is none.
need_python() {
    local python
    if [ -n "${PYTHON:-}" ]; then
        python=$(describe_python "$PYTHON")
        [ -n "$python" ] || die "PYTHON=$PYTHON is no CPython >= 3.11"
        echo "$PYTHON" && return
    fi
    python=$(find_python)
    if [ -z "$python" ]; then
        install_packages python3 python3-venv python3-dev
        python=$(find_python)
    fi
    [ -n "$python" ] || die "no CPython >= 3.11 found; name one with PYTHON=/path/to/python3"
    echo "$python"
}

# install_requirements PYTHON EXTRA...: with pip, what pyproject.toml lists
# for building ("build") or for an extra; not pyfastnet itself.
install_requirements() {
    local python=$1 list
    shift
    list=$("$python" - "$@" <<'PYTHON'
import re, sys, tomllib
with open("pyproject.toml", "rb") as file:
    table = tomllib.load(file)
extras = table["project"]["optional-dependencies"]
wanted, found = sys.argv[1:], []
for name in wanted:
    for item in table["build-system"]["requires"] if name == "build" else extras[name]:
        own = re.fullmatch(re.escape(table["project"]["name"]) + r"\[(.+)\]", item)
        if own:
            wanted += own[1].split(",")
        elif item not in found:
            found.append(item)
print("\n".join(found))
PYTHON
)
    # shellcheck disable=SC2086 # one word per requirement
    "$python" -m pip install -q --disable-pip-version-check $list </dev/null
}
