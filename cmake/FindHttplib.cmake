# Finds cpp-httplib and defines the target Httplib::Httplib: it comes with a
# pkg-config file alone. Debian builds it as a library, with OpenSSL.
find_path(HTTPLIB_INCLUDE_DIR httplib.h)
find_library(HTTPLIB_LIBRARY cpp-httplib)
mark_as_advanced(HTTPLIB_INCLUDE_DIR HTTPLIB_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Httplib
  REQUIRED_VARS HTTPLIB_LIBRARY HTTPLIB_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libcpp-httplib-dev, or run `make setup`")
if(Httplib_FOUND AND NOT TARGET Httplib::Httplib)
  find_package(OpenSSL REQUIRED COMPONENTS SSL)
  add_library(Httplib::Httplib UNKNOWN IMPORTED)
  set_target_properties(Httplib::Httplib PROPERTIES
    IMPORTED_LOCATION ${HTTPLIB_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${HTTPLIB_INCLUDE_DIR}
    # As the library was built: its classes are laid out by these.
    INTERFACE_COMPILE_DEFINITIONS
      "CPPHTTPLIB_OPENSSL_SUPPORT;CPPHTTPLIB_ZLIB_SUPPORT;CPPHTTPLIB_BROTLI_SUPPORT"
    INTERFACE_LINK_LIBRARIES "OpenSSL::SSL;OpenSSL::Crypto")
endif()
