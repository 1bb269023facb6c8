# Included by ctest, once the programs are built: the tests of `program`, as it
# lists them itself.
#
# A suite whose file lies in a folder slow/, gpu/ or parity/ has that label, and
# each case of it is a test. Of the others, which have the label `unit`, a suite
# is a test: a process for each case would spend most of its time loading torch.
# All cases of a suite lie in one such folder: the first tells the label.
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
  # What is slow measures time or starts many processes: nothing beside it.
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
