# Included by ctest when the programs are built. Adds the tests of `program`,
# which lists its suites itself.
#
# A suite has the tier `quick` unless its file says otherwise, in a line such as
#
#   // Tier: full, by case. Each case starts the program.
#   // Tier: nightly, 2 cores. It runs eight jobs at once.
#   // Tier of Large/Collectives: full. Eight ranks share two cores.
#
# The last form is for one suite of the file. After the tier, `by case` makes each
# case a test, `2 cores` says that the test keeps two cores busy, and `alone` that
# it measures time, so that nothing else may run beside it. The text after the
# full stop is the reason. A suite in a folder gpu/ is `full` by default, and one in parity/, which starts PyTorch, is
# `full, by case`. The name of the folder is a second label.
#
# The other suites of a tier run in one process, or in as many as `processes`
# says for the tier, because a process needs half a second to load LibTorch. If
# LOCKSTEP_TEST_SUITES is set in the environment, each suite is a test.
if(NOT EXISTS "${program}")
  # A missing program fails each tier that is asked for.
  add_test(${prefix}.NOT_BUILT ${prefix}.NOT_BUILT)
  set_tests_properties(${prefix}.NOT_BUILT PROPERTIES
                       LABELS "quick;full;nightly")
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
string(REPLACE "\\/" "/" json "${json}")
string(JSON suites GET "${json}" testsuites)
string(JSON count LENGTH "${suites}")
if(count EQUAL 0)
  return()
endif()

# Adds a test that runs the cases of `filter`, with the properties that the line
# of a file gives.
macro(add_cases name filter tier words labels)
  add_test(${name} ${program} --gtest_filter=${filter})
  set(processors 1)
  set(alone OFF)
  if("${words}" MATCHES "2 cores")
    set(processors 2)
  endif()
  if("${words}" MATCHES "alone")
    set(alone ON)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${tier};${labels}" TIMEOUT 600
                       PROCESSORS ${processors} RUN_SERIAL ${alone})
endmacro()

foreach(group IN LISTS groups)
  unset(filter_${group})
endforeach()
set(groups "")
math(EXPR last_suite "${count} - 1")
foreach(i RANGE ${last_suite})
  string(JSON suite GET "${suites}" ${i} name)
  string(JSON cases GET "${suites}" ${i} testsuite)
  # All cases of a suite are in one file.
  string(JSON file GET "${cases}" 0 file)
  set(tier quick)
  set(words "")
  set(label "")
  if(file MATCHES "/(gpu|parity)/[^/]+$")
    set(label ${CMAKE_MATCH_1})
    set(tier full)
  endif()
  if(label STREQUAL "parity")
    set(words ", by case")
  endif()
  file(STRINGS ${source}/${file} lines REGEX "^// Tier")
  set(said "")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^// Tier( of ([A-Za-z0-9_/]+))?: \
(quick|full|nightly)((, (by case|2 cores|alone))*)\\. .+$")
      message(FATAL_ERROR "${file} has the line '${line}'; expected '// Tier: "
        "quick|full|nightly[, by case][, 2 cores][, alone]. The reason.'")
    endif()
    set(named "${CMAKE_MATCH_2}")
    if(named STREQUAL suite OR (named STREQUAL "" AND NOT said STREQUAL suite))
      set(said "${named}")
      set(tier ${CMAKE_MATCH_3})
      set(words "${CMAKE_MATCH_4}")
    endif()
    if(NOT named STREQUAL "" AND NOT json MATCHES "\"name\": \"${named}\"")
      message(FATAL_ERROR "${file} has a tier for ${named}, which ${program} "
        "does not have; correct the name in '${line}'")
    endif()
  endforeach()
  if(words MATCHES "by case")
    string(JSON case_count LENGTH "${cases}")
    math(EXPR last_case "${case_count} - 1")
    foreach(j RANGE ${last_case})
      string(JSON case GET "${cases}" ${j} name)
      set(test ${prefix}.${suite}.${case})
      add_cases(${test} ${suite}.${case} ${tier} "${words}" "${label}")
      set_tests_properties(${test} PROPERTIES
                           SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
    endforeach()
  elseif(words MATCHES "alone" OR DEFINED ENV{LOCKSTEP_TEST_SUITES})
    add_cases(${prefix}.${suite} ${suite}.* ${tier} "${words}" "${label}")
  else()
    set(group ${tier})
    if(words MATCHES "2 cores")
      string(APPEND group _2_cores)
    endif()
    if(NOT label STREQUAL "")
      string(APPEND group _${label})
    endif()
    list(APPEND groups ${group})
    string(APPEND filter_${group} ":${suite}.*")
    set(label_${group} "${label}")
  endif()
endforeach()

list(REMOVE_DUPLICATES groups)
foreach(group IN LISTS groups)
  string(REGEX MATCH "^[a-z]+" tier ${group})
  string(REPLACE "_" " " words ${group})
  set(shards 1)
  if(DEFINED processes_${tier})
    set(shards ${processes_${tier}})
  endif()
  math(EXPR last "${shards} - 1")
  foreach(shard RANGE ${last})
    set(test ${prefix}.${group})
    if(shards GREATER 1)
      math(EXPR number "${shard} + 1")
      set(test ${test}.${number})
    endif()
    add_cases(${test} "${filter_${group}}" ${tier} "${words}"
              "${label_${group}}")
    set_tests_properties(${test} PROPERTIES ENVIRONMENT
      "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endforeach()
