# What `cmake --install` puts where: headers, the static libraries with a
# package for find_package(lockstep), and the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
set(layers base store shm tcp control monitor device device_links comm_collectives
    comm_queue comm_backends comm_c10d comm models models_language data
    data_text optim parallel_reduction
    parallel_module parallel_exchange parallel_replicas parallel_ddp parallel
    checkpoint train tasks tasks_images tasks_text launch_options launch_output launch_failure
    launch_rendezvous launch_workers launch_agent launch
    inspect report)
if(LOCKSTEP_BUILD_CLI)
  list(APPEND layers cli_start cli_embed)
endif()

set(targets lockstep lockstep_options lockstep_fmt)
foreach(layer IN LISTS layers)
  list(APPEND targets lockstep_${layer})
  set_target_properties(lockstep_${layer} PROPERTIES EXPORT_NAME ${layer})
endforeach()
set_target_properties(lockstep_options PROPERTIES EXPORT_NAME options)
set_target_properties(lockstep_fmt PROPERTIES EXPORT_NAME fmt)

install(TARGETS ${targets} EXPORT lockstepTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep::
        DESTINATION ${package_dir})

# The public headers and what they include. The rest is Lockstep's own.
set(headers_list ${CMAKE_CURRENT_LIST_DIR}/public_headers.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers_list})
file(STRINGS ${headers_list} installed_headers REGEX "^lockstep/")
foreach(header IN LISTS installed_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/generated/lockstep/base/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/base)

# An ABI is promised to nobody before 1.0: the minor version must be the same.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindLockstepTorch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindHwloc.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindPCRE2.cmake
        DESTINATION ${package_dir})

if(LOCKSTEP_BUILD_CLI)
  install(TARGETS lockstep_program DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Where bin/lockstep looks for it.
  install(TARGETS lockstep_torch_program
          DESTINATION ${CMAKE_INSTALL_BINDIR}/../libexec/lockstep)
  # What `lockstep compare --pytorch` runs, and what describes run.json.
  install(FILES ${PROJECT_SOURCE_DIR}/bench/pytorch_step_time.py
                ${PROJECT_SOURCE_DIR}/docs/run.schema.json
          DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
endif()
