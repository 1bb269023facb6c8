#pragma once

#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {

inline std::string operator/(const TemporaryFolder& folder,
                             const std::string& name) {
  return folder.path(name);
}

inline std::string read_text(const std::string& path) {
  return content_of(path);
}

template <class E, class Act>
std::string message_of(Act&& act) {
  return error_of<E>(std::forward<Act>(act));
}

}  // namespace lockstep
