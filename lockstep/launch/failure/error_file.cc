#include "lockstep/launch/failure/error_file.h"

#include <cmath>
#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <sys/stat.h>
#include <typeinfo>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/printable.h"
#include "lockstep/launch/failure/clock.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxMessageBytes = 8 << 10;
constexpr size_t kMaxCallstackBytes = 16 << 10;
constexpr size_t kMaxCodeBytes = 64;
constexpr int kMaxDepth = 16;

struct Content {
  std::string text;
  double modified_s = 0;
};

std::optional<Content> read_regular_file(const std::string& path) {
  RegularFile file;
  try {
    // A link could point outside the folder.
    file = open_regular_file(path, Links::kRefuse);
  } catch (const IoError&) {
    return std::nullopt;
  }
  const struct stat& facts = file.status;
  if (facts.st_size > static_cast<off_t>(kMaxFileBytes)) return std::nullopt;
  Content content;
  content.text.resize(kMaxFileBytes);
  const ssize_t size = ::pread(file.descriptor.get(), content.text.data(),
                               content.text.size(), 0);
  if (size <= 0) return std::nullopt;
  content.text.resize(static_cast<size_t>(size));
  content.modified_s = static_cast<double>(facts.st_mtim.tv_sec) +
                       1e-9 * static_cast<double>(facts.st_mtim.tv_nsec);
  return content;
}

json parse(const std::string& text) {
  const auto limit_depth = [](int depth, json::parse_event_t, json&) {
    return depth <= kMaxDepth;
  };
  return try_parse_json(text, limit_depth);
}

std::string text_at(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

// Returns the error's time in whole seconds, which may be text or a number in
// the file, or 0 if it is missing.
double time_at(const json& object) {
  if (!object.is_object() || !object.contains("timestamp")) return 0;
  const json& time = object.at("timestamp");
  if (time.is_number()) return time.get<double>();
  if (!time.is_string()) return 0;
  return parse_number<double>(time.get<std::string>()).value_or(0);
}

std::string type_name(const std::exception& error) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status),
      std::free);
  return name ? name.get() : typeid(error).name();
}

}  // namespace

std::optional<ErrorRecord> read_error_file(const std::string& path) {
  const auto content = read_regular_file(path);
  if (!content) return std::nullopt;
  const json root = parse(content->text);
  if (!root.is_object() || !root.contains("message")) return std::nullopt;
  const json& message = root.at("message");
  const json* extra = &root;
  ErrorRecord record;
  if (message.is_string()) {
    record.message = message.get<std::string>();
  } else {
    record.message = text_at(message, "message");
    if (message.is_object() && message.contains("extraInfo")) {
      extra = &message.at("extraInfo");
    }
  }
  record.callstack =
      printable(text_at(*extra, "py_callstack"), kMaxCallstackBytes);
  record.message = printable(record.message, kMaxMessageBytes);
  record.code = printable(text_at(*extra, "code"), kMaxCodeBytes);
  record.time_s = time_at(*extra);
  record.is_of_peer = extra->is_object() && extra->contains("lost_peer") &&
                      extra->at("lost_peer") == true;
  // The recorded time has only whole seconds. If the file's own time agrees
  // with it, use that one, which also shows the order of failures within a
  // second.
  if (!(std::abs(record.time_s - content->modified_s) > 2)) {
    record.time_s = content->modified_s;
  }
  return record;
}

void write_error_file(const std::string& path, const ErrorRecord& record,
                      int exit_code) {
  json message = {
      {"message", record.message},
      {"extraInfo",
       {{"py_callstack", record.callstack},
        {"timestamp", fmt::format("{:.0f}", std::floor(record.time_s))}}}};
  if (record.is_of_peer) message["extraInfo"]["lost_peer"] = true;
  if (!record.code.empty()) message["extraInfo"]["code"] = record.code;
  if (exit_code != 0) message["errorCode"] = exit_code;
  const json root = {{"message", message}};
  AtomicFile file(path);
  file.write(root.dump(-1, ' ', false, json::error_handler_t::replace));
  file.commit();
}

void record_error(const std::exception& error) noexcept {
  try {
    const auto path = env("TORCHELASTIC_ERROR_FILE");
    if (!path) return;
    const std::string text = type_name(error) + ": " + error.what();
    const auto* lockstep_error = dynamic_cast<const Error*>(&error);
    write_error_file(
        *path,
        {.message = text,
         .callstack = text,
         .time_s = unix_time_s(),
         .is_of_peer = dynamic_cast<const CommError*>(&error) != nullptr,
         .code = lockstep_error ? std::string(name_of(lockstep_error->code()))
                                : std::string()});
  } catch (...) {
    // The program ends with `error` in any case.
  }
}

}  // namespace lockstep::launch
