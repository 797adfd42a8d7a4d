# How our own targets are compiled. Nothing here is exported: a consumer's flags stay the consumer's.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
  find_program(TIGHTWIRE_CCACHE ccache)
  mark_as_advanced(TIGHTWIRE_CCACHE)
  if(TIGHTWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Whatever the folder a compiler runs in: the sources' names are absolute.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_NOHASHDIR=1 ${TIGHTWIRE_CCACHE})
  endif()
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Every public header compiles by itself: scripts/check_syntax.py.
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
if(TIGHTWIRE_WARNINGS_AS_ERRORS)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>
  $<$<COMPILE_LANGUAGE:CXX>:-Wconversion> $<$<COMPILE_LANGUAGE:CXX>:-Wshadow>)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-conversion>)  # in clang part of -Wconversion
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)  # g++ 12 at -O3 sees overlaps in std::string that are not there (GCC bug 105651)
endif()
# No fused multiply-add where two operations are written, or hosts would round differently.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# tightwire_instantiates_loops([FOR_USE] <source>...): files in which the loops of codecs are compiled. Those for use are optimized
# in full, since g++ 12 at -O2 leaves much of them undone. Under sanitizers all are optimized a little, whatever else is. Everything
# is inlined into them, and to watch the scope of each of the thousands of temporaries takes AddressSanitizer minutes; so does
# UndefinedBehaviorSanitizer, which sees the same loops of codecs where tests compile them.
function(tightwire_instantiates_loops)
  cmake_parse_arguments(PARSE_ARGV 0 loops "FOR_USE" "" "")
  foreach(source IN LISTS loops_UNPARSED_ARGUMENTS)
    set(options "")
    if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")
      set(options -O1)
      if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=address")
        list(APPEND options -fno-sanitize-address-use-after-scope)
      endif()
      if(loops_FOR_USE AND source MATCHES "_codecs")
        list(APPEND options -fno-sanitize=undefined,float-cast-overflow)
      endif()
    elseif(loops_FOR_USE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
      set(options -O3)
    endif()
    if(options)
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}")
    endif()
  endforeach()
endfunction()
