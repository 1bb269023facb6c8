#include "lockstep/base/input_file.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include "lockstep/base/file_error.h"

namespace lockstep {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

}  // namespace

RegularFile open_regular_file(const std::string& path, Links links) {
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK |
                    (links == Links::kRefuse ? O_NOFOLLOW : 0);
  RegularFile file{.descriptor = FileDescriptor(::open(path.c_str(), flags))};
  if (!file.descriptor.is_open() ||
      ::fstat(file.descriptor.get(), &file.status) != 0) {
    throw file_error("read", path, errno);
  }
  if (S_ISREG(file.status.st_mode)) return file;
  throw IoError({.code = ErrorCode::kFileAccess,
                 .what = "can't read " + path,
                 .expected = "a regular file",
                 .got = kind_of(file.status.st_mode)});
}

void read_in_parts(
    const std::string& path,
    const std::function<void(std::span<const std::byte>)>& take) {
  const RegularFile file = open_regular_file(path);
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (true) {
    const ssize_t got =
        ::read(file.descriptor.get(), buffer.data(), buffer.size());
    if (got == 0) return;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw file_error("read", path, errno);
    take(std::span(buffer).first(static_cast<size_t>(got)));
  }
}

}  // namespace lockstep
