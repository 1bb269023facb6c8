# The Debian package: `make deb`, or cpack in a build folder. It has what
# `cmake --install` installs, in /usr.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_CONTACT "Lockstep's authors <lockstep@localhost>")
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
# What the program loads; LibTorch is in the package.
set(CPACK_LOCKSTEP_BINARIES "")
if(LOCKSTEP_BUILD_CLI)
  list(APPEND CPACK_LOCKSTEP_BINARIES
       ${PROJECT_BINARY_DIR}/bin/lockstep
       ${PROJECT_BINARY_DIR}/libexec/lockstep/lockstep)
endif()
list(APPEND CPACK_LOCKSTEP_BINARIES ${LOCKSTEP_TORCH_LIB_DIR}/libtorch_cpu.so)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_depends.cmake)
# What programs that use the library are built with.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
    "g++ | clang, libcli11-dev, libfmt-dev, libhwloc-dev, libpcre2-dev, libssl-dev, nlohmann-json3-dev")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake (>= 3.25), pkg-config, python3")
# xz takes minutes for LibTorch.
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_THREADS 0)
set(CPACK_STRIP_FILES OFF)
include(CPack)
