"""Benchmarks that compare event loops on one machine.

Every bench_*.py works in two ways:

    pytest benchmarks/bench_echo.py --benchmark-json=echo.json
        one loop after the other under pytest-benchmark
    python -m benchmarks.bench_echo -l uvloop,pyfastnet,limit -r 5
        paired: each round runs every loop in turn; what counts are the
        ratios within rounds

`python -m benchmarks.compare` runs any of the paired ones together, and
`python -m benchmarks.demo` is the short demonstration.  The rest answer one
question each: gil_contention, promptness, coalescing_cost, syscalls, leaks.
report.py and plot.py turn the JSON of any of them into tables and pictures.
"""
