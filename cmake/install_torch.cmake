# Installs LibTorch's headers and the libraries that programs load, in the
# folders in which they look for each other. Inputs: torch_root, torch_dir
# (below the prefix), doc_dir, has_cuda.
cmake_path(GET torch_root PARENT_PATH around)
set(destination "${CMAKE_INSTALL_PREFIX}/${torch_dir}")
# file(INSTALL) prepends DESTDIR, but the other commands don't.
set(staged "$ENV{DESTDIR}${destination}")
message(STATUS "Installing LibTorch: ${destination}")

# Without CUDA: the libraries that libtorch_cpu is linked with, directly or
# indirectly. With CUDA, also those that are loaded by name (cuDNN's engines,
# libtorch_cuda_linalg, ...). There is no list of these, so all libraries of the
# wheel are installed except Python's.
set(starts ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${starts}
     RESOLVED_DEPENDENCIES_VAR needed UNRESOLVED_DEPENDENCIES_VAR missing
     POST_EXCLUDE_REGEXES "^/(usr/)?lib" PRE_EXCLUDE_REGEXES "^ld-linux")
if(missing)
  message(FATAL_ERROR "LibTorch in ${torch_root} needs libraries that are not "
                      "there: ${missing}. Run `make setup`.")
endif()
set(libraries ${starts} ${needed})
if(has_cuda)
  file(GLOB of_wheel ${torch_root}/lib/*.so* ${around}/nvidia/*/lib/*.so*)
  list(FILTER of_wheel EXCLUDE REGEX "/(libtorch_python|libshm)\\.so")
  list(APPEND libraries ${of_wheel})
endif()
list(REMOVE_DUPLICATES libraries)

# A hard link takes neither time nor space, but it keeps owner and mode. Files
# of another user are copied, because that user could change them after the
# installation.
execute_process(COMMAND id -u OUTPUT_VARIABLE own_uid
                OUTPUT_STRIP_TRAILING_WHITESPACE)
function(install_library library)
  string(REPLACE "${torch_root}/" "torch/" path "${library}")
  string(REPLACE "${around}/" "" path "${path}")
  if(IS_ABSOLUTE "${path}")
    return()  # a library of the system
  endif()
  cmake_path(GET path PARENT_PATH folder)
  execute_process(COMMAND stat -c "%u %a" "${library}" OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found MATCHES "^${own_uid} [67][45][45]$")
    file(MAKE_DIRECTORY "${staged}/${folder}")
    file(REMOVE "${staged}/${path}")
    file(CREATE_LINK "${library}" "${staged}/${path}" COPY_ON_ERROR)
  else()
    file(INSTALL "${library}" DESTINATION "${destination}/${folder}"
         FOLLOW_SYMLINK_CHAIN MESSAGE_NEVER)
  endif()
endfunction()
foreach(library IN LISTS libraries)
  install_library("${library}")
endforeach()

file(INSTALL "${torch_root}/include" DESTINATION "${destination}/torch"
     MESSAGE_NEVER)
# Each licence is named after its wheel: LICENSE.nvidia_cublas.
function(install_notice file name)
  if(EXISTS "${file}")
    file(INSTALL "${file}" DESTINATION "${CMAKE_INSTALL_PREFIX}/${doc_dir}"
         RENAME ${name} MESSAGE_NEVER)
  endif()
endfunction()
install_notice("${torch_root}/LICENSE" LICENSE.libtorch)
file(GLOB notices "${around}/torch-*.dist-info/licenses/*")
foreach(notice IN LISTS notices)
  cmake_path(GET notice FILENAME name)
  install_notice("${notice}" ${name}.libtorch)
endforeach()
file(GLOB notices "${around}/nvidia_*.dist-info/licenses/License.txt"
     "${around}/nvidia_*.dist-info/License.txt")
if(NOT has_cuda)
  # Only the two wheels that libtorch_cpu needs.
  list(FILTER notices INCLUDE REGEX "/nvidia_cuda_(cupti|runtime)-")
endif()
foreach(notice IN LISTS notices)
  string(REGEX REPLACE ".*/(nvidia_[^/]*)-[^/]*\\.dist-info/.*" "LICENSE.\\1" name
         "${notice}")
  install_notice("${notice}" ${name})
endforeach()
if(has_cuda)
  install_notice("${around}/nvidia/cusparselt/LICENSE.txt"
                 LICENSE.nvidia_cusparselt)
endif()
