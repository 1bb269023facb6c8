# Finds PCRE2 for UTF-8 and defines the target PCRE2::8BIT, like PCRE2's own
# CMake package, which Debian 12 does not ship.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_8_LIBRARY pcre2-8)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_8_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2
  REQUIRED_VARS PCRE2_8_LIBRARY PCRE2_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libpcre2-dev, or run `make setup`")
if(PCRE2_FOUND AND NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED)
  set_target_properties(PCRE2::8BIT PROPERTIES
    IMPORTED_LOCATION ${PCRE2_8_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PCRE2_INCLUDE_DIR})
endif()
