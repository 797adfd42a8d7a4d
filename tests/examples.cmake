# Every example runs as a test; what it prints is compared, where it says something.
function(tightwire_example_test name pattern)
  add_test(NAME example.${name} COMMAND ${ARGN})
  set_tests_properties(example.${name} PROPERTIES LABELS example TIMEOUT 60 PASS_REGULAR_EXPRESSION "${pattern}")
endfunction()

tightwire_example_test(overlap "layer 7 has mean 8.[45]" $<TARGET_FILE:overlap>)
tightwire_example_test(own_codec "came through: 0.2[45]" $<TARGET_FILE:own_codec>)
if(TARGET own_codec_cuda)
  tightwire_example_test(own_codec_cuda "1 became 1, 0.25 beside it 0" $<TARGET_FILE:own_codec_cuda>)
  set_tests_properties(example.own_codec_cuda PROPERTIES LABELS "example;gpu" SKIP_REGULAR_EXPRESSION "nothing to show")
endif()
if(TARGET cuda_all_reduce AND TARGET tightwire_tool)
  tightwire_example_test(cuda_all_reduce "sent [0-9]+ bytes over nccl 2" $<TARGET_FILE:tightwire_tool> run -n 1 --
    $<TARGET_FILE:cuda_all_reduce>)
  set_tests_properties(example.cuda_all_reduce PROPERTIES LABELS "example;gpu" SKIP_REGULAR_EXPRESSION "no usable device|no device")
endif()
if(TARGET all_reduce_c)
  tightwire_example_test(all_reduce_c.alone "^mean (1|0[.]999[0-9]*)\n" $<TARGET_FILE:all_reduce_c>)
endif()
if(TIGHTWIRE_UCX_BUILT AND TARGET all_reduce_c AND TARGET tightwire_tool)
  tightwire_example_test(all_reduce_c.launcher "mean 2[.](5|49)[0-9]*" $<TARGET_FILE:tightwire_tool> run -n 4 --
    $<TARGET_FILE:all_reduce_c>)
endif()
if(TIGHTWIRE_UCX_BUILT AND TARGET tightwire_tool)
  set(tool $<TARGET_FILE:tightwire_tool>)
  set(program $<TARGET_FILE:all_reduce>)
  tightwire_example_test(all_reduce.launcher "mean 2[.](5|49)[0-9]*, bytes per step" ${tool} run -n 4 -- ${program})
  # Two ranks by hand, with the variables that a launcher would set. No semicolons: CMake would split there.
  tightwire_example_test(all_reduce.torchrun_variables "mean 1[.](5|49)[0-9]*, bytes" sh -c
    "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29611 TIGHTWIRE_JOB_KEY=example && { RANK=1 '${program}' & } && RANK=0 '${program}' && wait")
  tightwire_example_test(all_reduce.slurm_variables "mean 1[.](5|49)[0-9]*, bytes" sh -c
    "export SLURM_NTASKS=2 SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=localhost && { SLURM_PROCID=1 '${program}' & } && SLURM_PROCID=0 '${program}' && wait")
  find_program(TIGHTWIRE_MPIRUN mpirun)
  mark_as_advanced(TIGHTWIRE_MPIRUN)
  if(TIGHTWIRE_MPIRUN)
    tightwire_example_test(all_reduce.mpirun "mean 1[.](5|49)[0-9]*, bytes" sh -c
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 '${TIGHTWIRE_MPIRUN}' -np 2 --oversubscribe '${program}'")
  endif()
endif()
