# Comparisons with peers: what they keep, and how peers are measured. Debian's Python, which has PyTorch and matplotlib.
add_test(NAME unit.bench_peers COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_bench.py)
set_tests_properties(unit.bench_peers PROPERTIES LABELS unit TIMEOUT 120 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
# The hook's own time is under 5 % of a step of 25 million parameters, or the program's status is 1.
if(TARGET tightwire_c AND TIGHTWIRE_UCX_BUILT)
  add_test(NAME nightly.hook_itself COMMAND /usr/bin/python3 ${PROJECT_SOURCE_DIR}/tests/torch/launch.py 2
    ${PROJECT_SOURCE_DIR}/bench/python/ddp_hook.py --most 5 4)
  set_tests_properties(nightly.hook_itself PROPERTIES LABELS nightly TIMEOUT 120 SKIP_RETURN_CODE 77 RUN_SERIAL ON
    ENVIRONMENT "PYTHONPATH=${PROJECT_SOURCE_DIR}/python;TIGHTWIRE_LIBRARY=$<TARGET_FILE:tightwire_c>;PYTHONDONTWRITEBYTECODE=1")
endif()
