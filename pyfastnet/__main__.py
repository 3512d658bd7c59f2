"""`python -m pyfastnet`: what is installed, and what the kernel offers."""

import argparse
import ctypes
import errno
import os
import platform
import ssl

import pyfastnet

_EPOLL_PWAIT2 = 441  # the same number on every architecture


def has_epoll_pwait2() -> bool:
    """Whether waits can be shorter than a millisecond."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    # No such descriptor, so that it cannot wait.
    syscall(_EPOLL_PWAIT2, -1, None, 1, None, None, 0)
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


def has_pidfd() -> bool:
    """Whether the end of a child is an event, or costs a thread."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def info() -> dict[str, str]:
    return {
        "pyfastnet": pyfastnet.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "kernel": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "OpenSSL": ssl.OPENSSL_VERSION,
        "CPUs": str(len(os.sched_getaffinity(0))),
        "PYFASTNET_SHARDS": os.environ.get("PYFASTNET_SHARDS", "(not set)"),
        "epoll_pwait2": "yes" if has_epoll_pwait2() else "no",
        "pidfd": "yes" if has_pidfd() else "no",
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pyfastnet", description=__doc__)
    parser.add_argument("command", nargs="?", default="info", choices=["info"])
    parser.parse_args()
    rows = info()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:{width}}  {value}")


if __name__ == "__main__":
    main()
