#include "lockstep/parallel/replicas/parallel_apply.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

namespace lockstep {

void run_as_replica(size_t replica, const Device& device,
                    const std::function<void()>& task) {
  const auto fail = [&](ErrorCode code, std::string_view text) {
    throw ReplicaError({.code = code,
                        .what = fmt::format("replica {} on {} failed: {}",
                                            replica, device.name(), text)});
  };
  try {
    task();
  } catch (const ReplicaError&) {
    throw;
  } catch (const Error& error) {
    fail(error.code(), error.text());
  } catch (const c10::Error& error) {
    fail(ErrorCode::kReplicaFailed, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(ErrorCode::kReplicaFailed, error.what());
  }
}

std::vector<c10::IValue> parallel_apply(
    const std::vector<Forward>& replicas,
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
    run_as_replica(i, workers[i]->device(),
                   [&] { outputs[i] = replicas[i](inputs[i]); });
  });
  return outputs;
}

}  // namespace lockstep
