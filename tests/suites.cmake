# Included by ctest, once the programs are built: one test for each suite of
# `program` that is neither slow nor compares with PyTorch nor needs a GPU. A
# process for each case would spend most of its time loading torch.
if(NOT EXISTS "${program}")
  add_test(${prefix}.NOT_BUILT ${prefix}.NOT_BUILT)
  return()
endif()
execute_process(COMMAND ${program} --gtest_list_tests
                OUTPUT_VARIABLE listed RESULT_VARIABLE result TIMEOUT 60)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${program} can't list its tests: ${result}\n${listed}")
endif()
# A suite's name begins a line and ends with a dot; its cases are indented.
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." suites "${listed}")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "[\n.]" "" suite ${suite})
  if(suite MATCHES "(^|/)(Slow|Gpu|Parity)")
    continue()
  endif()
  add_test(${prefix}.${suite} ${program} --gtest_filter=${suite}.*)
  set_tests_properties(${prefix}.${suite} PROPERTIES LABELS unit TIMEOUT 600)
endforeach()
