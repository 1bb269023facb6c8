#include "lockstep/parallel/group/parallel_apply.h"

#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace lockstep {

namespace {

/// Returns advice for a LibTorch error that is caused by splitting a batch, or
/// "" for other errors. LibTorch's errors have no codes.
std::string advice_for(std::string_view message) {
  constexpr std::string_view kBatchNorm =
      "Expected more than 1 value per channel when training";
  if (message.find(kBatchNorm) == std::string_view::npos) return "";
  return "batch normalisation in training needs several values per channel on "
         "every shard: pass batches that give each shard 2 samples or more, "
         "leave out a last, smaller batch (drop_last), or use fewer shards";
}

}  // namespace

void rethrow_of_replica(size_t replica, const Device& device) {
  const auto fail = [&](ErrorCode code, std::string_view text,
                        const std::string& fix = "") {
    throw ReplicaError({.code = code,
                        .what = fmt::format("replica {} on {} failed: {}",
                                            replica, device.name(), text),
                        .fix = fix});
  };
  try {
    throw;
  } catch (const ReplicaError&) {
    throw;
  } catch (const Error& error) {
    fail(error.code(), error.text());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    fail(ErrorCode::kReplicaFailed, text, advice_for(text));
  } catch (const std::exception& error) {
    fail(ErrorCode::kReplicaFailed, text_of(error));
  }
  throw;
}

std::vector<c10::IValue> parallel_apply(
    const std::vector<ReplicaForward>& replicas,
    const std::vector<std::vector<c10::IValue>>& inputs,
    const std::vector<std::unique_ptr<Worker>>& workers) {
  if (inputs.size() > replicas.size() || inputs.size() > workers.size()) {
    throw InvalidArgument(
        "parallel",
        {.code = ErrorCode::kMisuse,
         .what = "there are more inputs than replicas or workers",
         .expected = fmt::format("at most {}",
                                 std::min(replicas.size(), workers.size())),
         .got = fmt::format("{}", inputs.size())});
  }
  std::vector<c10::IValue> outputs(inputs.size());
  run_all(workers, [&](size_t i) {
    if (i >= inputs.size()) return;
    try {
      outputs[i] = replicas[i](inputs[i]);
    } catch (const std::exception&) {
      rethrow_of_replica(i, workers[i]->device());
    }
  });
  return outputs;
}

}  // namespace lockstep
