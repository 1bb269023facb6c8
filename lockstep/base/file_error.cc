#include "lockstep/base/file_error.h"

#include <cerrno>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/out_of_resources.h"

namespace lockstep {
namespace {

std::string cure(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose another folder";
    case EFBIG:
      return "raise the limit (ulimit -f)";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and its folder";
    case EROFS:
      return "choose a folder on a writable file system";
    case ENOENT:
      return "check the path";
    default:
      return "";
  }
}

}  // namespace

IoError file_error(std::string_view act, std::string_view path, int code) {
  return IoError({.code = ErrorCode::kFileAccess,
                  .what = fmt::format("can't {} {}: {}", act, path,
                                      std::generic_category().message(code)),
                  .got = code == EFBIG ? file_size_limit() : "",
                  .fix = cure(code)});
}

}  // namespace lockstep
