# Defines what `cmake --install` installs: headers, the static libraries with a
# package for find_package(lockstep), and the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Other users can't read a LibTorch that `make setup` put into the cache of the
# user who builds, so it is installed with Lockstep. A LibTorch that the user
# named is used where it is. docs/decisions/0031-an-installed-libtorch.md
cmake_path(SET own_environment NORMALIZE
           ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(NOT Torch_DIR AND LOCKSTEP_PYTHON STREQUAL own_environment)
  set(is_of_setup ON)
else()
  set(is_of_setup OFF)
endif()
option(LOCKSTEP_INSTALL_TORCH "Install LibTorch's libraries and headers, too"
       ${is_of_setup})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
get_property(layers GLOBAL PROPERTY LOCKSTEP_LAYERS)
get_property(core_layers GLOBAL PROPERTY LOCKSTEP_CORE_LAYERS)
get_property(components GLOBAL PROPERTY LOCKSTEP_COMPONENTS)

set(targets lockstep_options lockstep_fmt)
foreach(component IN LISTS components)
  list(APPEND targets lockstep_${component}_component)
endforeach()
foreach(layer IN LISTS layers)
  list(APPEND targets lockstep_${layer})
  set_target_properties(lockstep_${layer} PROPERTIES EXPORT_NAME detail_${layer})
endforeach()
set_target_properties(lockstep_options PROPERTIES EXPORT_NAME detail_options)
set_target_properties(lockstep_fmt PROPERTIES EXPORT_NAME detail_fmt)

install(TARGETS ${targets} EXPORT lockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep::
        DESTINATION ${package_dir})

# include/lockstep has the public headers. Other headers that these include are in
# include/lockstep/detail. docs/decisions/0043-the-front-door.md
set(headers_list ${CMAKE_CURRENT_LIST_DIR}/public_headers.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers_list})
file(STRINGS ${headers_list} lines REGEX "^(lockstep/|# \\[)")
set(kind public)
set(public_headers "")
set(detail_headers "")
foreach(line IN LISTS lines)
  if(line MATCHES "^#")
    set(kind detail)
    continue()
  endif()
  # A build of the core has no layer for the other headers.
  cmake_path(GET line PARENT_PATH layer)
  string(REGEX REPLACE "^lockstep/?" "" layer ${layer})
  string(REPLACE "/" "_" layer "${layer}")
  if(layer IN_LIST layers OR line STREQUAL "lockstep/core.h" OR
     (line STREQUAL "lockstep/lockstep.h" AND NOT LOCKSTEP_CORE_ONLY) OR
     (line STREQUAL "lockstep/lm.h" AND LOCKSTEP_LM))
    list(APPEND ${kind}_headers ${line})
  endif()
endforeach()
install(CODE "
  set(public_headers \"${public_headers}\")
  set(detail_headers \"${detail_headers}\")
  set(header_root \"${PROJECT_SOURCE_DIR}\")
  set(header_staging \"${PROJECT_BINARY_DIR}/installed_headers\")
  set(include_dir \"${CMAKE_INSTALL_INCLUDEDIR}\")
  include(\"${CMAKE_CURRENT_LIST_DIR}/install_headers.cmake\")"
  COMPONENT headers)
install(FILES ${PROJECT_BINARY_DIR}/generated/lockstep/base/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/base COMPONENT headers)

# In the package, lib/lockstep contains LibTorch (torch/) and, next to it as
# LibTorch expects, the CUDA libraries that it needs (nvidia/).
set(torch_dir ${CMAKE_INSTALL_LIBDIR}/lockstep)
if(LOCKSTEP_INSTALL_TORCH)
  set(installed_torch_root "\${PACKAGE_PREFIX_DIR}/${torch_dir}/torch")
  install(CODE "
    set(torch_root \"${LOCKSTEP_TORCH_ROOT}\")
    set(torch_dir \"${torch_dir}\")
    set(doc_dir \"${CMAKE_INSTALL_DOCDIR}\")
    set(has_cuda ${LOCKSTEP_HAS_CUDA})
    set(CMAKE_OBJDUMP \"${CMAKE_OBJDUMP}\")
    include(\"${CMAKE_CURRENT_LIST_DIR}/install_torch.cmake\")"
    COMPONENT torch)
else()
  set(installed_torch_root ${LOCKSTEP_TORCH_ROOT})
endif()

# We promise no ABI before 1.0, so the minor version must be the same.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# In a wheel (tools/wheel.py), torch is the package beside lockstep/cpp.
set(installed_torch_root "\${PACKAGE_PREFIX_DIR}/../../torch")
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/wheel/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
file(WRITE ${PROJECT_BINARY_DIR}/wheel/torch_version "${LOCKSTEP_TORCH_VERSION}\n")
file(WRITE ${PROJECT_BINARY_DIR}/wheel/torch_root "${LOCKSTEP_TORCH_ROOT}\n")
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindLockstepTorch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindHwloc.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindPCRE2.cmake
        DESTINATION ${package_dir})

if(LOCKSTEP_BUILD_CLI)
  install(TARGETS lockstep_program DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The folder in which bin/lockstep looks for it. It finds LibTorch relative to
  # itself.
  cmake_path(SET program_dir NORMALIZE
             ${CMAKE_INSTALL_BINDIR}/../libexec/lockstep)
  if(LOCKSTEP_INSTALL_TORCH)
    cmake_path(RELATIVE_PATH torch_dir BASE_DIRECTORY ${program_dir}
               OUTPUT_VARIABLE torch_from_program)
    set(rpath "$ORIGIN/${torch_from_program}/torch/lib")
    if(LOCKSTEP_HAS_CUDA)
      file(GLOB cuda_folders LIST_DIRECTORIES ON
           RELATIVE ${LOCKSTEP_TORCH_ROOT}/.. ${LOCKSTEP_TORCH_ROOT}/../nvidia/cu[0-9]*/lib)
      foreach(folder IN LISTS cuda_folders)
        list(APPEND rpath "$ORIGIN/${torch_from_program}/${folder}")
      endforeach()
    endif()
    set_target_properties(lockstep_torch_program PROPERTIES
                          INSTALL_RPATH "${rpath}")
  else()
    set_target_properties(lockstep_torch_program PROPERTIES
                          INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
  install(TARGETS lockstep_torch_program DESTINATION ${program_dir})
  # The script of `lockstep compare --pytorch`, and the schema of run.json.
  install(FILES ${PROJECT_SOURCE_DIR}/bench/pytorch_step_time.py
                ${PROJECT_SOURCE_DIR}/bench/pytorch_collectives.py
                ${PROJECT_SOURCE_DIR}/docs/run.schema.json
          DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
  # The Python of a LibTorch that is used where it is. An installation with its
  # own LibTorch may be on a different machine than the Python of the build.
  if(NOT LOCKSTEP_INSTALL_TORCH AND LOCKSTEP_PYTHON)
    install(FILES ${CMAKE_BINARY_DIR}/share/lockstep/torch_python
            DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
  endif()
  # For `lockstep topo --replay`.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/topologies
          DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
endif()

# For builds without CMake. Static libraries must come before those that they
# need, so the order of the layers is reversed.
function(pc_libraries_of variable)
  set(libraries "")
  foreach(layer IN LISTS ARGN)
    string(PREPEND libraries " -llockstep_${layer}")
  endforeach()
  set(${variable} "${libraries}" PARENT_SCOPE)
endfunction()
pc_libraries_of(pc_all ${layers})
pc_libraries_of(pc_core ${core_layers})
get_target_property(fmt_kind lockstep_fmt TYPE)
if(fmt_kind STREQUAL "STATIC_LIBRARY")
  string(APPEND pc_all " -llockstep_fmt")
  string(APPEND pc_core " -llockstep_fmt")
  set(pc_definitions "")
else()
  set(pc_definitions " -DFMT_HEADER_ONLY")
endif()
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY
           ${CMAKE_INSTALL_PREFIX}/${pc_dir} OUTPUT_VARIABLE pc_prefix)
if(LOCKSTEP_INSTALL_TORCH)
  set(pc_torch "\${prefix}/${torch_dir}/torch")
else()
  set(pc_torch ${LOCKSTEP_TORCH_ROOT})
endif()
set(pc_torch_libraries "\${torch}/lib/libtorch_cpu.so \${torch}/lib/libc10.so")
set(pc_rpath "-Wl,-rpath,\${torch}/lib")
if(LOCKSTEP_HAS_CUDA)
  string(APPEND pc_torch_libraries
    " -Wl,--no-as-needed \${torch}/lib/libtorch_cuda.so"
    " \${torch}/lib/libc10_cuda.so -Wl,--as-needed")
  if(LOCKSTEP_INSTALL_TORCH)
    file(GLOB cudart RELATIVE ${LOCKSTEP_TORCH_ROOT}
         ${LOCKSTEP_TORCH_ROOT}/../nvidia/cu[0-9]*/lib/libcudart.so.*)
    cmake_path(GET cudart PARENT_PATH cudart_folder)
    string(APPEND pc_torch_libraries " \${torch}/${cudart}")
    string(APPEND pc_rpath " -Wl,-rpath,\${torch}/${cudart_folder}")
  else()
    string(APPEND pc_torch_libraries " ${CUDA_CUDART}")
  endif()
endif()
# lockstep-core.pc is for programs that link lockstep::core only.
function(install_pc pc_name pc_requires pc_libraries)
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/lockstep.pc.in
                 ${PROJECT_BINARY_DIR}/${pc_name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc_name}.pc DESTINATION ${pc_dir})
endfunction()
set(pc_core_requires "fmt libssl libcrypto nlohmann_json")
install_pc(lockstep-core "${pc_core_requires}" "${pc_core}")
if(NOT LOCKSTEP_CORE_ONLY)
  set(pc_requires "${pc_core_requires} hwloc libjpeg libpng zlib")
  if(LOCKSTEP_LM)
    string(APPEND pc_requires " libpcre2-8")
  endif()
  install_pc(lockstep "${pc_requires}" "${pc_all}")
endif()
# LICENSE in Debian's format, and the licences of LibTorch.
install(FILES ${PROJECT_SOURCE_DIR}/cmake/debian/copyright
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
