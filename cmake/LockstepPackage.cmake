# The Debian package, made by `make deb` or by cpack in a build folder. It
# installs what `cmake --install` installs, in /usr.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
# The project has no address, but dpkg needs one. A name below .invalid belongs
# to nobody (RFC 2606). Whoever distributes the package puts their own address
# here and in the changelog.
set(CPACK_PACKAGE_CONTACT "Lockstep developers <developers@lockstep.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
    WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"The program, the headers and static libraries, and the LibTorch that they are
built with. Lockstep trains a network on several devices or in several
processes, to the same bits as on one.")
# Binaries that the program loads. LibTorch is in the package.
set(CPACK_LOCKSTEP_BINARIES "")
if(LOCKSTEP_BUILD_CLI)
  list(APPEND CPACK_LOCKSTEP_BINARIES
       ${PROJECT_BINARY_DIR}/bin/lockstep
       ${PROJECT_BINARY_DIR}/libexec/lockstep/lockstep)
  set(CPACK_LOCKSTEP_PROGRAM ${PROJECT_BINARY_DIR}/bin/lockstep)
  set(CPACK_LOCKSTEP_MANUAL /usr/share/man/man1/lockstep.1)
  set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/package_manual.cmake)
endif()
list(APPEND CPACK_LOCKSTEP_BINARIES ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cpu.so)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_depends.cmake)
# What is needed to build programs with the library.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
    "g++ | clang, libcli11-dev, libfmt-dev, libhwloc-dev, libpcre2-dev, libssl-dev, nlohmann-json3-dev")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake (>= 3.25), pkg-config, python3")
# xz takes minutes for LibTorch. (Debian's archive does not accept zstd, and
# lintian warns about it, but dpkg has supported it since Debian 12.)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_THREADS 0)
set(CPACK_STRIP_FILES OFF)

# A package without a Debian revision has its changelog in changelog.gz (Debian
# Policy, 12.7). -n omits the time, so the file is the same each time.
set(changelog ${PROJECT_SOURCE_DIR}/cmake/debian/changelog)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${changelog})
file(STRINGS ${changelog} newest LIMIT_COUNT 1)
if(NOT newest MATCHES "^lockstep \\(${PROJECT_VERSION}\\) ")
  message(FATAL_ERROR "cmake/debian/changelog begins with another version; "
                      "expected ${PROJECT_VERSION}, got '${newest}'")
endif()
find_program(LOCKSTEP_GZIP gzip)
if(LOCKSTEP_GZIP)
  execute_process(COMMAND ${LOCKSTEP_GZIP} -9nc ${changelog}
                  OUTPUT_FILE ${PROJECT_BINARY_DIR}/changelog.gz
                  COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${PROJECT_BINARY_DIR}/changelog.gz
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
include(CPack)
