#include "lockstep/train/record/tensorboard_log.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/output.h"
#include "lockstep/monitor/rank_status.h"

namespace lockstep::training {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = value;
  }
  return table;
}

constexpr auto kTable = make_table();

/// Masks a CRC as TFRecord does, because the CRC of data that contains CRCs is
/// weak.
uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8U;
}

template <class T>
void append_raw(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Wire types of protocol buffers.
constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>((value & 0x7f) | 0x80);
  }
  out += static_cast<char>(value);
}

void append_tag(std::string& out, uint32_t field, uint32_t type) {
  append_varint(out, (field << 3) | type);
}

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

/// Returns a tensorflow.Event: wall_time = 1, step = 2.
std::string event_at(int64_t step, double wall_time) {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_raw(event, wall_time);
  append_tag(event, 2, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

/// Returns a tensorflow.Summary.Value: tag = 1, simple_value = 2.
std::string scalar(const std::string& tag, double value) {
  std::string text;
  append_bytes(text, 1, tag);
  append_tag(text, 2, kFixed32);
  append_raw(text, static_cast<float>(value));
  return text;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return crc ^ 0xffffffff;
}

EventFile::EventFile(const std::string& folder) {
  make_directories(folder);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // TensorBoard reads files in the order of their names, so the time comes
  // first.
  path_ = fmt::format(
      "{}/events.out.tfevents.{}.{}.{}.{}", folder,
      std::chrono::duration_cast<std::chrono::seconds>(now).count(),
      host_name(), ::getpid(),
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() %
          1'000'000'000);
  append_to_file(path_, "");
}

void EventFile::begin(int64_t step, double wall_time) {
  is_begun_ = true;
  std::string event = event_at(0, wall_time);
  append_bytes(event, 3, "brain.Event:2");  // file_version
  write_record(event);
  if (step == 0) return;
  // tensorflow.SessionLog: status = 1, where START is 1. The steps from this
  // one on are repeated.
  event = event_at(step + 1, wall_time);
  std::string session;
  append_tag(session, 1, kVarint);
  append_varint(session, 1);
  append_bytes(event, 7, session);
  write_record(event);
}

void EventFile::write_record(std::string_view data) {
  std::string length;
  append_raw(length, static_cast<uint64_t>(data.size()));
  std::string record = length;
  append_raw(record, masked_crc(length));
  record += data;
  append_raw(record, masked_crc(data));
  append_to_file(path_, record);
}

void EventFile::write_scalars(int64_t step, double wall_time,
                              const std::string& prefix,
                              const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : metrics) {
    append_bytes(summary, 1, scalar(prefix + name, value));
  }
  std::string event = event_at(step, wall_time);
  append_bytes(event, 5, summary);
  write_record(event);
}

void TensorBoardLog::open(int64_t step) {
  if (!file_.is_begun()) file_.begin(step, monitor::now_s());
}

void TensorBoardLog::write_scalars(int64_t step, const std::string& prefix,
                                   const Metrics& metrics) {
  file_.write_scalars(step, monitor::now_s(), prefix, metrics);
}

void TensorBoardLog::before_step(const RunState& at) { open(at.step); }

void TensorBoardLog::after_step(const RunState& at, const Metrics& metrics) {
  write_scalars(at.step, "train/", metrics);
  write_scalars(at.step, "", {{"lr", at.lr}, {"step_ms", 1e3 * at.step_s}});
}

void TensorBoardLog::after_evaluation(const RunState& at,
                                      const TestReport& test) {
  open(at.step);
  write_scalars(at.step, "test/", test.metrics);
}

}  // namespace lockstep::training
