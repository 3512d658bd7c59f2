"""pytest options of the benchmarks:

--loops NAME,...     default `default`: asyncio, uvloop and pyfastnet, all of
                     which must be there; `default,peers` adds the others
--bench-rounds N     rounds of each workload and loop, after a warm-up
"""

import pytest

from benchmarks import harness, loops


def pytest_addoption(parser):
    group = parser.getgroup("benchmarks of event loops")
    group.addoption("--loops", default="default", help="event loops by name")
    group.addoption("--bench-rounds", type=int, default=5)


def pytest_generate_tests(metafunc):
    if "workload" in metafunc.fixturenames:
        workloads = metafunc.module.WORKLOADS
        metafunc.parametrize("workload", workloads.values(), ids=workloads)
    if "loop_name" in metafunc.fixturenames:
        names = [n for n in resolved(metafunc.config) if n != loops.LIMIT]
        metafunc.parametrize("loop_name", names)


def resolved(config):
    try:
        return loops.resolve(config.getoption("loops"))
    except SystemExit as e:
        raise pytest.UsageError(str(e)) from None


@pytest.fixture
def options(request):
    return harness.Options(rounds=request.config.getoption("bench_rounds"))
