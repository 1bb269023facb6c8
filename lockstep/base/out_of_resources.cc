#include "lockstep/base/out_of_resources.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/resource.h>

#include <fmt/format.h>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/format.h"

namespace lockstep {
namespace {

std::optional<rlim_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

// `option` is the option of the shell's ulimit.
std::string limit_in_bytes(int resource, const char* what, const char* option) {
  const auto limit = limit_of(resource);
  if (!limit) return {};
  return fmt::format("this process may have {} {} (ulimit {})",
                     format_bytes(static_cast<double>(*limit)), what, option);
}

std::string limit_in_words(int error) {
  std::string limit;
  if (error == ENOMEM) limit = memory_limits();
  if (error == EMFILE) {
    const auto files = limit_of(RLIMIT_NOFILE);
    if (files) limit = fmt::format("this process may have {} open", *files);
  }
  return limit.empty() ? limit : " (" + limit + ")";
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

std::string memory_limits() {
  std::string limits = limit_in_bytes(RLIMIT_AS, "of addresses", "-v");
  const std::string data = limit_in_bytes(RLIMIT_DATA, "of data", "-d");
  if (!limits.empty() && !data.empty()) limits += ", ";
  return limits + data;
}

std::string file_size_limit() {
  return limit_in_bytes(RLIMIT_FSIZE, "in a file", "-f");
}

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
