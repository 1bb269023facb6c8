# Finds hwloc and defines the target Hwloc::Hwloc, because hwloc comes only with
# a pkg-config file.
find_path(HWLOC_INCLUDE_DIR hwloc.h)
find_library(HWLOC_LIBRARY hwloc)
mark_as_advanced(HWLOC_INCLUDE_DIR HWLOC_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Hwloc
  REQUIRED_VARS HWLOC_LIBRARY HWLOC_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libhwloc-dev, or run `make setup`")
if(Hwloc_FOUND AND NOT TARGET Hwloc::Hwloc)
  add_library(Hwloc::Hwloc UNKNOWN IMPORTED)
  set_target_properties(Hwloc::Hwloc PROPERTIES
    IMPORTED_LOCATION ${HWLOC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HWLOC_INCLUDE_DIR})
endif()
