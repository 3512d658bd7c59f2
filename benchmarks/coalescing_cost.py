"""What the deferral of writes costs where it cannot help.

    python -m benchmarks.coalescing_cost [-r 9] [-t 2] [--json FILE]

One connection, one small message in flight: every turn of the loop has one
small write and nothing to gather it with.  The same loop with the deferral
switched off (PYFASTNET_DEFER=0) and on; the ratio is on ÷ off.
"""

from benchmarks import harness

OFF, ON = "pyfastnet@PYFASTNET_DEFER=0", "pyfastnet@PYFASTNET_DEFER=1"

WORKLOADS = harness.registry(
    harness.ServerWorkload(
        "defer-1conn", "coalescing", "proto", "--conns 1 --size 64", 0
    ),
    harness.ServerWorkload(
        "defer-unix-1conn", "coalescing", "proto", "--conns 1 --size 64 --unix", 0
    ),
)

if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, f"{OFF},{ON}", base=OFF)
