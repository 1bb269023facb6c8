# Read by cpack when the files of the package are in their folder. Adds the manual
# page, which help2man makes of the help.
find_program(help2man help2man)
find_program(gzip gzip)
if(NOT help2man OR NOT gzip)
  message(FATAL_ERROR "the package has no manual page; expected the programs "
                      "help2man and gzip; install them")
endif()
# Prints the help with a heading for each command, in the form that help2man reads.
set(help ${CPACK_PACKAGE_DIRECTORY}/help/lockstep)
file(WRITE ${help} [[#!/bin/sh
"$LOCKSTEP_PROGRAM" "$@" | sed -E '/^Subcommands:$/d; s/^[a-z-]+$/\n*lockstep &*\n/
  s/^  Options:$//; s/^  ([A-Z].*)$/\n\1/; s/^    /  /'
]])
file(CHMOD ${help} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(page ${CPACK_TEMPORARY_INSTALL_DIRECTORY}${CPACK_LOCKSTEP_MANUAL})
cmake_path(GET page PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env LOCKSTEP_PROGRAM=${CPACK_LOCKSTEP_PROGRAM}
          ${help2man} --no-info --help-option=--help-all --output=${page}
          "--name=data-parallel training on LibTorch" ${help}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${CPACK_PACKAGE_DIRECTORY}/help)
# Debian Policy, 12.1. -n omits the time, so the file is the same each time.
execute_process(COMMAND ${gzip} -9nf ${page} COMMAND_ERROR_IS_FATAL ANY)
