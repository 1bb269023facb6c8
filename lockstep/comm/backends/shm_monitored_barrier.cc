#include "lockstep/comm/backends/shm_monitored_barrier.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int64_t kTextBytes = 512;

struct Tags {
  explicit Tags(uint32_t number)
      : arrival(-2 - static_cast<int>(number % (1u << 28)) * 2),
        answer(arrival - 1) {}
  int arrival;
  int answer;
};

at::Tensor message_of(const std::string& text) {
  at::Tensor message = torch::zeros({kTextBytes}, torch::kUInt8);
  std::memcpy(message.data_ptr(), text.data(),
              std::min<size_t>(text.size(), kTextBytes - 1));
  return message;
}

void wait_as_rank_0(Collectives& collectives, int size, Tags tags,
                    Collectives::Timeout timeout, bool wait_all_ranks) {
  std::vector<Collectives::Work> arrivals, answers;
  for (int other = 1; other < size; ++other) {
    arrivals.push_back(collectives.recv(torch::zeros({1}, torch::kUInt8), other,
                                        tags.arrival, timeout));
    answers.push_back(
        collectives.send(message_of("here"), other, tags.answer, timeout));
  }
  std::vector<int> missing;
  std::string first_error;
  for (size_t i = 0; i < arrivals.size(); ++i) {
    try {
      arrivals[i]->wait();
    } catch (const CommError& error) {
      if (missing.empty()) first_error = error.what();
      missing.push_back(static_cast<int>(i) + 1);
      if (!wait_all_ranks) break;
    }
  }
  std::string what;
  if (!missing.empty()) {
    what = fmt::format(
        "Rank{} {} failed to pass monitoredBarrier in {} ms: timed out, or "
        "ended",
        missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
        timeout.count());
  }
  // Those that are late find it when they come. Who is gone gets nothing.
  for (int other = 1; other < size; ++other) {
    answers.push_back(
        collectives.send(message_of(what), other, tags.answer, timeout));
  }
  if (missing.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = what,
                   .got = first_error,
                   .fix = "look at what those ranks do"});
}

std::string answer_of_rank_0(Collectives& collectives, Tags tags,
                             Collectives::Timeout timeout) {
  const at::Tensor message = torch::zeros({kTextBytes}, torch::kUInt8);
  collectives.recv(message, 0, tags.answer, timeout)->wait();
  return static_cast<const char*>(message.const_data_ptr());
}

}  // namespace

void shm_monitored_barrier(Collectives& collectives, int rank, int size,
                           uint32_t number, Collectives::Timeout timeout,
                           bool wait_all_ranks) {
  const Tags tags(number);
  if (rank == 0) {
    wait_as_rank_0(collectives, size, tags, timeout, wait_all_ranks);
    return;
  }
  std::string failure;
  try {
    collectives.send(torch::ones({1}, torch::kUInt8), 0, tags.arrival, timeout)
        ->wait();
    answer_of_rank_0(collectives, tags, timeout);
    failure = answer_of_rank_0(collectives, tags, timeout);
  } catch (const CommError& error) {
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} came to monitoredBarrier, but rank 0 did "
                             "not answer: timed out, or ended",
                             rank),
         .got = error.what(),
         .fix = "look at rank 0's own output"});
  }
  if (failure.empty()) return;
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = fmt::format("rank 0 says: {}", failure),
                   .fix = "look at what those ranks do"});
}

}  // namespace lockstep
