# Read by cpack. Finds the Debian packages that the program and LibTorch need
# with dpkg-shlibdeps. CPACK_DEBIAN_PACKAGE_SHLIBDEPS would also ask it about
# every CUDA library. Some of them are plugins for MPIs and networks that a
# machine may not have.
set(folder ${CPACK_PACKAGE_DIRECTORY}/depends)
file(WRITE ${folder}/debian/control "Source: lockstep\nPackage: lockstep\n")
set(arguments "")
foreach(binary IN LISTS CPACK_LOCKSTEP_BINARIES)
  list(APPEND arguments -e ${binary})
endforeach()
# LibTorch's own libraries are not in any package.
execute_process(
  COMMAND dpkg-shlibdeps -O --ignore-missing-info ${arguments}
  WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE found ERROR_VARIABLE said
  RESULT_VARIABLE result)
file(REMOVE_RECURSE ${folder})
if(NOT found MATCHES "shlibs:Depends=([^\n]+)")
  message(FATAL_ERROR "dpkg-shlibdeps named no packages (${result}): ${said}\n"
                      "Install dpkg-dev.")
endif()
set(CPACK_DEBIAN_PACKAGE_DEPENDS "${CMAKE_MATCH_1}")
