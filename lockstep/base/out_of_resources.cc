#include "lockstep/base/out_of_resources.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>

#include <fmt/format.h>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {
namespace {

std::string limit_in_words(int error) {
  const int resource = error == EMFILE ? RLIMIT_NOFILE : RLIMIT_AS;
  rlimit limit{};
  if (error == ENFILE || ::getrlimit(resource, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return {};
  }
  return error == EMFILE
             ? fmt::format(" (this process may have {} open)", limit.rlim_cur)
             : fmt::format(" (this process may have {} bytes of addresses)",
                           limit.rlim_cur);
}

Problem problem_of(const std::string& what, int error) {
  return {.code = ErrorCode::kOutOfResources,
          .what = what,
          .got = std::strerror(error) + limit_in_words(error),
          .fix = error == EMFILE   ? "raise the limit of open files: ulimit -n"
                 : error == ENFILE ? "raise the system's limit of open files: "
                                     "sysctl fs.file-max"
                                   : "give the process more memory: ulimit -v "
                                     "(prlimit --as), or a smaller model"};
}

}  // namespace

OutOfResources::OutOfResources(std::string_view component,
                               const std::string& what, int error)
    : Error(component, problem_of(what, error)) {}

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM;
}

void check_descriptors(std::string_view component, const std::string& what) {
  const FileDescriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!file.is_open() && (errno == EMFILE || errno == ENFILE)) {
    throw OutOfResources(component, what, errno);
  }
}

}  // namespace lockstep
