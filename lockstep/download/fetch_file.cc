#include "lockstep/download/fetch_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <curl/curl.h>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/format.h"
#include "lockstep/base/output.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::download {
namespace {

namespace fs = std::filesystem;

constexpr long kStallBytesPerSecond = 1024;
constexpr long kMaxRedirections = 10;
constexpr int64_t kMaxErrorPageBytes = 1 << 20;
constexpr size_t kMaxVersionBytes = 1024;
// A try that downloads this much resets the number of attempts.
constexpr int64_t kMinShareOfRest = 100;
constexpr int64_t kMaxWantedBytes = 1 << 20;

using Headers = std::unique_ptr<curl_slist, void (*)(curl_slist*)>;

/// The result of a try.
struct End {
  enum class Kind { kDone, kAgain, kHopeless };
  Kind kind;
  std::string why{};  ///< unless kDone
  std::string fix{};  ///< kHopeless
};

/// A download into one partial file.
class Fetch {
 public:
  Fetch(std::string url, const std::string& path, int64_t bytes,
        const FetchOptions& options)
      : url_(std::move(url)),
        path_(path),
        bytes_(bytes),
        options_(options),
        file_(::open(partial_path(path).c_str(),
                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644)) {
    if (!file_.is_open()) refuse_file("can't open");
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) refuse_file("can't read");
    had_ = status.st_size;
    if (had_ > bytes_) begin_anew();
  }

  bool run() {
    double wait_s = options_.backoff_s;
    for (int tries = 1; had_ < bytes_; ++tries) {
      const int64_t before = had_;
      const End end = try_once();
      if (failure_) std::rethrow_exception(failure_);
      if (end.kind == End::Kind::kDone) break;
      if (has_got_on(before)) {
        tries = 1;
        wait_s = options_.backoff_s;
      }
      if (end.kind == End::Kind::kHopeless || tries >= options_.attempts) {
        throw DataError(
            {.code = ErrorCode::kDownloadFailed,
             .what = "can't download " + url_,
             .got = end.why,
             .fix = end.fix.empty()
                        ? "try again later: it continues where it stopped"
                        : end.fix});
      }
      if (options_.say) {
        options_.say(fmt::format("{}: {}; trying again in {}",
                                 fs::path(path_).filename().string(), end.why,
                                 format_duration(wait_s)));
      }
      wait(wait_s);
      wait_s *= 2;
    }
    if (::fsync(file_.get()) != 0) refuse_file("can't write");
    return kept_bytes_;
  }

 private:
  // Returns whether the last try made enough progress to go on. Otherwise a
  // server that sends one byte each time would keep us busy forever.
  bool has_got_on(int64_t before) const {
    const int64_t wanted =
        std::min((bytes_ - before) / kMinShareOfRest, kMaxWantedBytes);
    return had_ - before >= std::max<int64_t>(wanted, 1);
  }

  End try_once() {
    const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(),
                                                      curl_easy_cleanup);
    if (!curl) return {End::Kind::kHopeless, "libcurl can't begin"};
    curl_ = curl.get();
    const auto headers = set_up();
    has_begun_ = false;
    error_page_bytes_ = 0;
    error_[0] = '\0';
    const CURLcode code = curl_easy_perform(curl_);
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    return end_of(code, status);
  }

  Headers set_up() {
    const auto set = [this](CURLoption option, auto value) {
      curl_easy_setopt(curl_, option, value);
    };
    set(CURLOPT_URL, url_.c_str());
    set(CURLOPT_PROTOCOLS_STR, "https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, "https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, kMaxRedirections);
    set(CURLOPT_USERAGENT, "lockstep");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS,
        static_cast<long>(options_.connect_timeout_s * 1000));
    set(CURLOPT_LOW_SPEED_LIMIT, kStallBytesPerSecond);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_timeout_s));
    set(CURLOPT_ERRORBUFFER, error_.data());
    if (!options_.ca_file.empty()) {
      set(CURLOPT_CAINFO, options_.ca_file.c_str());
    }
    set(CURLOPT_WRITEFUNCTION, &Fetch::on_bytes);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &Fetch::on_progress);
    set(CURLOPT_XFERINFODATA, this);
    Headers headers(nullptr, curl_slist_free_all);
    if (had_ > 0) {
      set(CURLOPT_RANGE, fmt::format("{}-", had_).c_str());
      const std::string version = read_version();
      if (!version.empty()) {
        headers.reset(
            curl_slist_append(nullptr, ("If-Range: " + version).c_str()));
        set(CURLOPT_HTTPHEADER, headers.get());
      }
    }
    return headers;
  }

  End end_of(CURLcode code, long status) {
    const std::string why =
        shown(error_[0] != '\0' ? error_.data() : curl_easy_strerror(code));
    if (wrong_file_) {
      return {End::Kind::kHopeless, *wrong_file_,
              "it has another file under that name: name another --mirror"};
    }
    if (status == 416) {
      begin_anew();
      return {End::Kind::kAgain, "the server has no such rest of the file"};
    }
    if (status >= 400) {
      const bool is_passing = status >= 500 || status == 408 || status == 429;
      return {is_passing ? End::Kind::kAgain : End::Kind::kHopeless,
              fmt::format("the server answers {}", status),
              is_passing ? "" : "name a --mirror that has the file"};
    }
    switch (code) {
      case CURLE_OK:
        if (had_ == bytes_) return {End::Kind::kDone};
        return {
            End::Kind::kAgain,
            fmt::format("the server ended after {} of {} bytes", had_, bytes_)};
      case CURLE_ABORTED_BY_CALLBACK:
        interrupt();
      case CURLE_OPERATION_TIMEDOUT:
        return {End::Kind::kAgain,
                fmt::format("no answer, or less than {} bytes a second for {}",
                            kStallBytesPerSecond,
                            format_duration(options_.stall_timeout_s))};
      case CURLE_PEER_FAILED_VERIFICATION:
        return {End::Kind::kHopeless, "the server is not trusted: " + why,
                "if its certificate is one of your own, name it with "
                "--ca-file"};
      case CURLE_SSL_CACERT_BADFILE:
        return {End::Kind::kHopeless, why, "name a file of PEM certificates"};
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_URL_MALFORMAT:
        return {End::Kind::kHopeless, why, "only https:// is allowed"};
      case CURLE_TOO_MANY_REDIRECTS:
        return {End::Kind::kHopeless, why, "name another --mirror"};
      default:
        return {End::Kind::kAgain, why};
    }
  }

  // Handles the first bytes of a response, which is the file, its rest, or an
  // error page.
  bool begin_answer() {
    has_begun_ = true;
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    is_file_ = status == 200 || status == 206;
    if (!is_file_) return true;
    curl_off_t length = -1;
    curl_easy_getinfo(curl_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (status == 200) {
      if (had_ > 0) begin_anew();
      write_version();
    }
    const int64_t expected = bytes_ - had_;
    if (length >= 0 && length != expected) {
      wrong_file_ = fmt::format("{} bytes where {} were expected",
                                static_cast<int64_t>(length), expected);
      return false;
    }
    if (status == 206 && !is_the_rest()) {
      wrong_file_ = "another part of the file than was asked for";
      return false;
    }
    if (had_ > 0) kept_bytes_ = true;
    return true;
  }

  // Returns whether the response is the missing part. The header reads "bytes
  // 100-199/200".
  bool is_the_rest() {
    const std::string range = header("Content-Range");
    const std::string_view kUnit = "bytes ";
    if (!range.starts_with(kUnit)) return false;
    int64_t first = -1;
    std::from_chars(range.data() + kUnit.size(), range.data() + range.size(),
                    first);
    return first == had_;
  }

  std::string header(const char* name) {
    curl_header* found = nullptr;
    const auto result =
        curl_easy_header(curl_, name, 0, CURLH_HEADER, -1, &found);
    return result == CURLHE_OK ? found->value : "";
  }

  void write(std::span<const char> bytes) {
    while (!bytes.empty()) {
      const ssize_t written =
          ::pwrite(file_.get(), bytes.data(), bytes.size(), had_);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) refuse_file("can't write");
      had_ += written;
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  // Called by libcurl. Exceptions must not pass through libcurl.
  static size_t on_bytes(char* data, size_t /*one*/, size_t size, void* user) {
    auto& fetch = *static_cast<Fetch*>(user);
    try {
      if (!fetch.has_begun_ && !fetch.begin_answer())
        return CURL_WRITEFUNC_ERROR;
      if (!fetch.is_file_) {
        fetch.error_page_bytes_ += static_cast<int64_t>(size);
        return fetch.error_page_bytes_ > kMaxErrorPageBytes
                   ? CURL_WRITEFUNC_ERROR
                   : size;
      }
      if (static_cast<int64_t>(size) > fetch.bytes_ - fetch.had_) {
        fetch.wrong_file_ =
            fmt::format("more than the {} bytes of the file", fetch.bytes_);
        fetch.begin_anew();
        return CURL_WRITEFUNC_ERROR;
      }
      fetch.write({data, size});
      return size;
    } catch (...) {
      fetch.failure_ = std::current_exception();
      return CURL_WRITEFUNC_ERROR;
    }
  }

  static int on_progress(void* user, curl_off_t /*all*/, curl_off_t /*done*/,
                         curl_off_t /*sent_all*/, curl_off_t /*sent*/) {
    auto& fetch = *static_cast<Fetch*>(user);
    if (fetch.options_.stop && fetch.options_.stop()) return 1;
    if (fetch.options_.progress) {
      fetch.options_.progress(fetch.had_, fetch.bytes_);
    }
    return 0;
  }

  void wait(double seconds) {
    const Stopwatch watch;
    while (watch.seconds() < seconds) {
      if (options_.stop && options_.stop()) interrupt();
      ::poll(nullptr, 0, 50);
    }
  }

  [[noreturn]] void interrupt() {
    throw DataError(
        {.code = ErrorCode::kInterrupted,
         .what = fmt::format("the download of {} was interrupted at {}",
                             fs::path(path_).filename().string(),
                             format_bytes(static_cast<double>(had_))),
         .fix = "the same command continues there"});
  }

  void begin_anew() {
    had_ = 0;
    kept_bytes_ = false;
    if (::ftruncate(file_.get(), 0) != 0) refuse_file("can't write");
    std::error_code ignored;
    fs::remove(version_path(path_), ignored);
  }

  std::string read_version() const {
    std::error_code error;
    if (!fs::is_regular_file(version_path(path_), error)) return "";
    const std::string version =
        read_file(version_path(path_), kMaxVersionBytes);
    return shown(version) == version ? version : "";
  }

  // Stores the version of the file. Only a strong ETag guarantees that two
  // files have the same bytes.
  void write_version() {
    std::string version = header("ETag");
    if (version.empty() || version.starts_with("W/")) {
      version = header("Last-Modified");
    }
    if (version.empty() || shown(version) != version) return;
    write_atomically(version_path(path_), version);
  }

  [[noreturn]] void refuse_file(const char* what) const {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = fmt::format("{} {}", what, partial_path(path_)),
                   .got = std::strerror(errno),
                   .fix = "check the folder, and the space on its disk"});
  }

  std::string url_;
  std::string path_;
  int64_t bytes_;
  const FetchOptions& options_;
  FileDescriptor file_;
  int64_t had_ = 0;          ///< bytes in the file
  bool kept_bytes_ = false;  ///< whether some are from an earlier download

  CURL* curl_ = nullptr;  ///< for this try, like the members below
  bool has_begun_ = false;
  bool is_file_ = false;
  int64_t error_page_bytes_ = 0;
  std::array<char, CURL_ERROR_SIZE> error_{};
  std::optional<std::string> wrong_file_;
  std::exception_ptr failure_;
};

}  // namespace

std::string shown(std::string_view text) {
  return printable_ascii(std::string(text.substr(0, 200)));
}

std::string partial_path(const std::string& path) { return path + ".part"; }

std::string version_path(const std::string& path) {
  return partial_path(path) + ".version";
}

bool fetch_file(const std::string& url, const std::string& path, int64_t bytes,
                const FetchOptions& options) {
  static const CURLcode is_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (is_ready != CURLE_OK) {
    throw DataError({.code = ErrorCode::kDownloadFailed,
                     .what = "libcurl can't begin",
                     .got = curl_easy_strerror(is_ready)});
  }
  return Fetch(url, path, bytes, options).run();
}

}  // namespace lockstep::download
