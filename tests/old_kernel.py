"""Runs a command as on an old kernel, or under a strict seccomp filter:

    python tests/old_kernel.py ENOSYS|EPERM command [argument ...]

For the command and all its children the system calls of LACKING fail with
that error.
"""

import ctypes
import errno
import os
import struct
import sys

# The same numbers on every architecture.
LACKING = {
    "pidfd_send_signal": 424,  # Linux 5.1
    "pidfd_open": 434,  # 5.3
    "epoll_pwait2": 441,  # 5.11
}

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
RET_ALLOW = 0x7FFF0000
RET_ERRNO = 0x00050000
LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS; at 0: the number of the call
JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K


class Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def program(error):
    """The filter, in the kernel's instructions: code, if true, if false, k."""
    count = len(LACKING)
    lines = [(LOAD_WORD, 0, 0, 0)]
    for position, number in enumerate(LACKING.values()):
        lines.append((JUMP_IF_EQUAL, count - position, 0, number))
    lines.append((RETURN, 0, 0, RET_ALLOW))
    lines.append((RETURN, 0, 0, RET_ERRNO | error))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def install(error):
    """For this process and what it starts; raises OSError where there is no
    seccomp."""
    libc = ctypes.CDLL(None, use_errno=True)
    text = program(error)
    memory = ctypes.create_string_buffer(text, len(text))
    filter_ = Program(len(text) // 8, ctypes.addressof(memory))
    zero = ctypes.c_ulong(0)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero),
        (
            PR_SET_SECCOMP,
            ctypes.c_ulong(SECCOMP_MODE_FILTER),
            ctypes.byref(filter_),
            zero,
            zero,
        ),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    install(getattr(errno, sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
