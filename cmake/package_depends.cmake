# Read by cpack: the Debian packages that the program and LibTorch need, as
# dpkg-shlibdeps finds them. CPACK_DEBIAN_PACKAGE_SHLIBDEPS would ask it about
# every library of CUDA as well, some of which are plugins for MPIs and networks
# that a machine may lack.
set(folder ${CPACK_PACKAGE_DIRECTORY}/depends)
file(WRITE ${folder}/debian/control "Source: lockstep\nPackage: lockstep\n")
set(arguments "")
foreach(binary IN LISTS CPACK_LOCKSTEP_BINARIES)
  list(APPEND arguments -e ${binary})
endforeach()
# LibTorch's own libraries belong to no package.
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
