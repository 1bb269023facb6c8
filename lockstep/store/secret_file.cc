#include "lockstep/store/secret_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <openssl/crypto.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/log.h"
#include "lockstep/store/socket_address.h"

namespace lockstep::store {
namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxBytes = 4096;
constexpr std::chrono::seconds kReadTimeout{10};
constexpr mode_t kOthers = 077;
constexpr const char* kMakeOne =
    "make one with `(umask 077; openssl rand -hex 32 > job.secret)` and give "
    "the same to every node";

[[noreturn]] void throw_bad_secret(const Problem& problem) {
  throw InvalidArgument("secret", problem);
}

JobSecret read_all(int fd, const std::string& name) {
  // Room for more than the limit, to detect a file that is too long.
  std::string text(kMaxBytes + 2, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const auto deadline = std::chrono::steady_clock::now() + kReadTimeout;
    if (!wait_for(fd, POLLIN, deadline)) {
      throw_bad_secret(
          {.code = ErrorCode::kBadSecret,
           .what = "no secret came from " + name,
           .got = fmt::format("nothing in {} s", kReadTimeout.count())});
    }
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) {
      throw_bad_secret({.code = ErrorCode::kBadSecret,
                        .what = "can't read the secret in " + name,
                        .got = std::strerror(errno)});
    }
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r')) --size;
  if (size < kMinBytes || size > kMaxBytes) {
    OPENSSL_cleanse(text.data(), text.size());
    throw_bad_secret(
        {.code = ErrorCode::kBadSecret,
         .what = "can't use the secret in " + name,
         .expected = fmt::format("{} to {} bytes", kMinBytes, kMaxBytes),
         .got = size > kMaxBytes ? "more" : std::to_string(size),
         .fix = kMakeOne});
  }
  JobSecret secret(std::string_view(text).substr(0, size));
  OPENSSL_cleanse(text.data(), text.size());
  return secret;
}

[[noreturn]] void throw_no_folder(const std::string& what,
                                  const std::string& got) {
  throw IoError({.code = ErrorCode::kBadSecret,
                 .what = what,
                 .got = got,
                 .fix = "use --secret-file FILE"});
}

// Returns a folder of this user on this host. Its name is the same for all
// processes of the user, in any session.
std::string private_folder() {
  struct stat facts {};
  const std::string session = fmt::format("/run/user/{}", ::geteuid());
  const bool has_session = ::stat(session.c_str(), &facts) == 0 &&
                           S_ISDIR(facts.st_mode) &&
                           facts.st_uid == ::geteuid();
  const std::string path = has_session
                               ? session + "/lockstep"
                               : fmt::format("/tmp/lockstep-{}", ::geteuid());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw_no_folder("can't make the folder " + path, std::strerror(errno));
  }
  // Another user may have created a folder of that name in /tmp.
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::geteuid() || (facts.st_mode & kOthers) != 0) {
    throw_no_folder("can't keep a secret in " + path,
                    "a folder that others made or may read");
  }
  return path;
}

void write_secret(const std::string& path) {
  const Key secret = Key::random();
  std::string text;
  for (const uint8_t byte : secret.bytes()) text += fmt::format("{:02x}", byte);
  std::string temporary = path + ".XXXXXX";
  const FileDescriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  const bool is_written =
      file.is_open() && ::write(file.get(), text.data(), text.size()) ==
                            static_cast<ssize_t>(text.size());
  int error = errno;
  OPENSSL_cleanse(text.data(), text.size());
  // link() does not replace an existing file, so all processes use the secret
  // of the first one.
  bool is_there = false;
  if (is_written) {
    is_there = ::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST;
    error = errno;
  }
  if (file.is_open()) ::unlink(temporary.c_str());
  if (!is_there) throw_no_folder("can't write " + path, std::strerror(error));
}

}  // namespace

JobSecret read_secret_file(const std::string& path) {
  RegularFile file;
  try {
    file = open_regular_file(path);
  } catch (const IoError& error) {
    throw_bad_secret(
        {.code = error.code(),
         .what = "can't use the secret: " + text_of(error),
         .fix = std::string(kMakeOne) + "; --secret-fd takes one from a pipe"});
  }
  const struct stat& facts = file.status;
  if (facts.st_uid != ::geteuid() || (facts.st_mode & kOthers) != 0) {
    throw_bad_secret({.code = ErrorCode::kBadSecret,
                      .what = "others may read the secret in '" + path + "'",
                      .expected = fmt::format("a file of user {} with mode 600",
                                              ::geteuid()),
                      .got = fmt::format("one of user {} with mode {:o}",
                                         facts.st_uid, facts.st_mode & 07777),
                      .fix = "chmod 600 '" + path +
                             "', and make a new secret if others "
                             "may have read it"});
  }
  return read_all(file.descriptor.get(), "'" + path + "'");
}

JobSecret read_secret_fd(int fd) {
  const FileDescriptor file(fd);
  return read_all(file.get(), fmt::format("file descriptor {}", fd));
}

JobSecret loopback_secret() {
  const std::string path = private_folder() + "/loopback.secret";
  if (::access(path.c_str(), F_OK) != 0) write_secret(path);
  return read_secret_file(path);
}

JobSecret no_secret() { return JobSecret("lockstep without a secret"); }

JobSecret shared_secret(const SecretSource& source, const std::string& host) {
  if (source.fd >= 0) return read_secret_fd(source.fd);
  if (!source.file.empty()) return read_secret_file(source.file);
  if (source.is_none || env_flag("LOCKSTEP_NO_SECRET").value_or(false)) {
    if (!is_loopback_name(host)) {
      warn_once("no secret", "comm",
                "the job has no secret: anyone who reaches its store at '" +
                    host + "' may join it");
    }
    return no_secret();
  }
  if (const auto file = env("LOCKSTEP_SECRET_FILE")) {
    return read_secret_file(*file);
  }
  if (is_loopback_name(host)) return loopback_secret();
  throw_bad_secret(
      {.code = ErrorCode::kBadSecret,
       .what = "several nodes at '" + host + "' need a secret of the job",
       .expected = "--secret-file FILE, --secret-fd N or "
                   "LOCKSTEP_SECRET_FILE",
       .got = "none: anyone in the network could join it",
       .fix = std::string(kMakeOne) +
              "; --no-secret (LOCKSTEP_NO_SECRET=1) runs without one"});
}

}  // namespace lockstep::store
