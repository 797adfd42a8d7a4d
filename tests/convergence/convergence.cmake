# Tests of the convergence suite: its statistics, its runner, and with libtorch the smoke tier. Debian's Python, which has numpy.
foreach(part statistics running defaults)
  add_test(NAME unit.convergence_${part} COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_${part}.py)
  set_tests_properties(unit.convergence_${part} PROPERTIES LABELS unit TIMEOUT 240)
endforeach()
add_test(NAME convergence.page COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_page.py)
set_tests_properties(convergence.page PROPERTIES LABELS convergence TIMEOUT 120)
add_executable(recorder_test ${CMAKE_CURRENT_LIST_DIR}/recorder_test.cpp ${PROJECT_SOURCE_DIR}/convergence/recorder.cpp)
target_include_directories(recorder_test PRIVATE ${PROJECT_SOURCE_DIR}/convergence ${PROJECT_SOURCE_DIR}/tests/unit)
target_link_libraries(recorder_test PRIVATE tightwire_test_settings)
gtest_discover_tests(recorder_test TEST_PREFIX unit. DISCOVERY_TIMEOUT 60 PROPERTIES LABELS unit TIMEOUT 120)
if(TARGET convergence_trainer AND TARGET tightwire_tool)
  add_test(NAME convergence.trainer COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/test_trainer.py)
  set_tests_properties(convergence.trainer PROPERTIES LABELS "convergence;long" TIMEOUT 300 RUN_SERIAL ON
    ENVIRONMENT "TIGHTWIRE_CONVERGENCE_TRAINER=$<TARGET_FILE:convergence_trainer>")
  # Fails where a control is judged wrongly: sound ones must be found as good, broken ones worse.
  add_test(NAME convergence.smoke
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/smoke.py $<TARGET_FILE:tightwire_tool> ${CMAKE_CURRENT_BINARY_DIR}/smoke)
  set_tests_properties(convergence.smoke PROPERTIES LABELS convergence TIMEOUT 900 RUN_SERIAL ON)
endif()
