# Included by ctest when the programs are built. Adds the tests of `program`,
# which lists them itself.
#
# A suite with a file in a folder slow/, gpu/ or parity/ has that label, and
# each of its cases is a test. Other suites have the label `unit`, and the whole
# suite is one test, because a process for each case would spend most of its
# time loading torch. All cases of a suite are in one such folder, so the first
# case determines the label.
if(NOT EXISTS "${program}")
  add_test(${prefix}.NOT_BUILT ${prefix}.NOT_BUILT)
  return()
endif()
if(NOT EXISTS ${listed} OR ${program} IS_NEWER_THAN ${listed})
  execute_process(COMMAND ${program} --gtest_list_tests
                          --gtest_output=json:${listed}
                  OUTPUT_VARIABLE output ERROR_VARIABLE output
                  RESULT_VARIABLE result TIMEOUT 60)
  if(NOT result EQUAL 0)
    file(REMOVE ${listed})
    message(FATAL_ERROR "${program} can't list its tests: ${result}\n${output}")
  endif()
endif()
file(READ ${listed} json)
string(JSON suites GET "${json}" testsuites)
string(JSON count LENGTH "${suites}")
if(count EQUAL 0)
  return()
endif()
math(EXPR last_suite "${count} - 1")
foreach(i RANGE ${last_suite})
  string(JSON suite GET "${suites}" ${i} name)
  string(JSON cases GET "${suites}" ${i} testsuite)
  string(JSON file GET "${cases}" 0 file)
  if(file MATCHES "/(slow|gpu|parity)/[^/]+$")
    set(label ${CMAKE_MATCH_1})
  else()
    add_test(${prefix}.${suite} ${program} --gtest_filter=${suite}.*)
    set_tests_properties(${prefix}.${suite} PROPERTIES LABELS unit TIMEOUT 600)
    continue()
  endif()
  # Slow tests measure time or start many processes, so nothing else runs at the
  # same time.
  set(serial OFF)
  if(label STREQUAL "slow")
    set(serial ON)
  endif()
  string(JSON count LENGTH "${cases}")
  math(EXPR last_case "${count} - 1")
  foreach(j RANGE ${last_case})
    string(JSON case GET "${cases}" ${j} name)
    set(test ${prefix}.${suite}.${case})
    add_test(${test} ${program} --gtest_filter=${suite}.${case})
    set_tests_properties(${test} PROPERTIES LABELS ${label} TIMEOUT 300
      RUN_SERIAL ${serial} SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  endforeach()
endforeach()
