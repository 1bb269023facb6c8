# Finds ncurses for UTF-8 and defines the target Ncurses::Ncurses.
find_path(NCURSES_INCLUDE_DIR curses.h)
find_library(NCURSES_LIBRARY ncursesw)
find_library(TINFO_LIBRARY NAMES tinfo ncursesw)
mark_as_advanced(NCURSES_INCLUDE_DIR NCURSES_LIBRARY TINFO_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Ncurses
  REQUIRED_VARS NCURSES_LIBRARY TINFO_LIBRARY NCURSES_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install libncurses-dev, or run `make setup`")
if(Ncurses_FOUND AND NOT TARGET Ncurses::Ncurses)
  add_library(Ncurses::Ncurses UNKNOWN IMPORTED)
  set_target_properties(Ncurses::Ncurses PROPERTIES
    IMPORTED_LOCATION ${NCURSES_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCURSES_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ${TINFO_LIBRARY})
endif()
