# Comparisons with peers: what they keep, and how peers are measured. Debian's Python, which has PyTorch and matplotlib.
add_test(NAME unit.bench_peers COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_bench.py)
set_tests_properties(unit.bench_peers PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
