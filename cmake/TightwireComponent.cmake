# tightwire_component(<name> [TYPE ...] SOURCES ... LINK ... [DEPENDS ...]): the library tightwire_<name>, known as tightwire::<name>,
# in an export set of its own. DEPENDS are the arguments of the find_dependency() calls its users need, one string
# each; "... UNLESS <target>" is left out where the target exists, for packages that cannot be found twice.
function(tightwire_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TYPE" "SOURCES;LINK;DEPENDS")
  set(target tightwire_${name})
  add_library(${target} ${arg_TYPE} ${arg_SOURCES})
  add_library(tightwire::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    POSITION_INDEPENDENT_CODE ON
    TIGHTWIRE_DEPENDS "${arg_DEPENDS}")
  target_link_libraries(${target} ${arg_LINK})
  set_property(GLOBAL APPEND PROPERTY tightwire_components ${name})
endfunction()

# tightwire_decide(<PART> <what it lacks>): sets TIGHTWIRE_<PART>_BUILT, and remembers the reason when it is not.
function(tightwire_decide part lacks)
  list(JOIN lacks ", " lacks)
  set(built OFF)
  if(NOT TIGHTWIRE_${part} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "TIGHTWIRE_${part}=${TIGHTWIRE_${part}}: must be AUTO, ON or OFF")
  elseif(TIGHTWIRE_${part} STREQUAL "OFF")
    set(note "switched off (TIGHTWIRE_${part}=OFF)")
  elseif(lacks STREQUAL "")
    set(built ON)
    set(note "built")
  elseif(TIGHTWIRE_${part} STREQUAL "ON")
    message(FATAL_ERROR "TIGHTWIRE_${part}=ON, but: ${lacks}")
  else()
    set(note "${lacks}")
  endif()
  set(TIGHTWIRE_${part}_BUILT ${built} PARENT_SCOPE)
  string(TOLOWER ${part} name)
  set_property(GLOBAL APPEND PROPERTY tightwire_parts ${name})
  set_property(GLOBAL PROPERTY tightwire_note_${name} "${note}")
endfunction()

function(tightwire_report)
  message(STATUS "tightwire ${PROJECT_VERSION}")
  message(STATUS "  headers, core: built")
  get_property(parts GLOBAL PROPERTY tightwire_parts)
  foreach(part IN LISTS parts)
    get_property(note GLOBAL PROPERTY tightwire_note_${part})
    message(STATUS "  ${part}: ${note}")
  endforeach()
endfunction()
