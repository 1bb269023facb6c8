#include "lockstep/base/error_code.h"

#include <array>
#include <cstddef>
#include <utility>

namespace lockstep {
namespace {

using Entry = std::pair<ErrorCode, std::string_view>;

constexpr std::array kNames{
    Entry{ErrorCode::kFileAccess, "file-access"},
    Entry{ErrorCode::kFileTooLarge, "file-too-large"},
    Entry{ErrorCode::kOutOfMemory, "out-of-memory"},
    Entry{ErrorCode::kOutOfResources, "out-of-resources"},
    Entry{ErrorCode::kProcessStart, "process-start"},
    Entry{ErrorCode::kInterrupted, "interrupted"},
    Entry{ErrorCode::kMisuse, "misuse"},
    Entry{ErrorCode::kBadOption, "bad-option"},
    Entry{ErrorCode::kUnknownName, "unknown-name"},
    Entry{ErrorCode::kBadVariable, "bad-variable"},
    Entry{ErrorCode::kNotInBuild, "not-in-build"},
    Entry{ErrorCode::kBadBatch, "bad-batch"},
    Entry{ErrorCode::kBadTensor, "bad-tensor"},
    Entry{ErrorCode::kBadRank, "bad-rank"},
    Entry{ErrorCode::kBadOptimizer, "bad-optimizer"},
    Entry{ErrorCode::kBadLoss, "bad-loss"},
    Entry{ErrorCode::kEmptyBatch, "empty-batch"},
    Entry{ErrorCode::kNoSuchDevice, "no-such-device"},
    Entry{ErrorCode::kMixedDevices, "mixed-devices"},
    Entry{ErrorCode::kBadLink, "bad-link"},
    Entry{ErrorCode::kDeviceFailed, "device-failed"},
    Entry{ErrorCode::kMalformedData, "malformed-data"},
    Entry{ErrorCode::kDownloadFailed, "download-failed"},
    Entry{ErrorCode::kCheckpointMissing, "checkpoint-missing"},
    Entry{ErrorCode::kCheckpointDamaged, "checkpoint-damaged"},
    Entry{ErrorCode::kCheckpointVersion, "checkpoint-version"},
    Entry{ErrorCode::kCheckpointNotSaved, "checkpoint-not-saved"},
    Entry{ErrorCode::kStateMismatch, "state-mismatch"},
    Entry{ErrorCode::kResumeConflict, "resume-conflict"},
    Entry{ErrorCode::kRanksNotConnected, "ranks-not-connected"},
    Entry{ErrorCode::kCallsDiffer, "calls-differ"},
    Entry{ErrorCode::kCollectiveFailed, "collective-failed"},
    Entry{ErrorCode::kSamplesDiffer, "samples-differ"},
    Entry{ErrorCode::kParametersDiffer, "parameters-differ"},
    Entry{ErrorCode::kNoSharedMemory, "no-shared-memory"},
    Entry{ErrorCode::kReplicaFailed, "replica-failed"},
    Entry{ErrorCode::kNotRepeatable, "not-repeatable"},
    Entry{ErrorCode::kNotCloneable, "not-cloneable"},
    Entry{ErrorCode::kReplicaDiffers, "replica-differs"},
    Entry{ErrorCode::kModuleChanged, "module-changed"},
    Entry{ErrorCode::kParameterWritten, "parameter-written"},
    Entry{ErrorCode::kUnsupportedGraph, "unsupported-graph"},
    Entry{ErrorCode::kUnusedParameters, "unused-parameters"},
    Entry{ErrorCode::kRepeatedGradient, "repeated-gradient"},
    Entry{ErrorCode::kUnevenInputs, "uneven-inputs"},
    Entry{ErrorCode::kFailedBefore, "failed-before"},
    Entry{ErrorCode::kRendezvousFailed, "rendezvous-failed"},
    Entry{ErrorCode::kCannotListen, "cannot-listen"},
    Entry{ErrorCode::kStoreUnreachable, "store-unreachable"},
    Entry{ErrorCode::kStoreRefused, "store-refused"},
    Entry{ErrorCode::kStoreProtocol, "store-protocol"},
    Entry{ErrorCode::kBadSecret, "bad-secret"},
    Entry{ErrorCode::kNotFinite, "not-finite"},
};

constexpr std::array<ErrorCode, kNames.size()> codes_in_order() {
  std::array<ErrorCode, kNames.size()> codes{};
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = kNames[i].first;
  return codes;
}

constexpr std::array kCodes = codes_in_order();

/// Returns whether the table has every code at its index.
constexpr bool is_complete() {
  for (size_t i = 0; i < kCodes.size(); ++i) {
    if (static_cast<size_t>(kCodes[i]) != i) return false;
  }
  return static_cast<size_t>(ErrorCode::kNotFinite) + 1 == kCodes.size();
}
static_assert(is_complete());

}  // namespace

std::string_view name_of(ErrorCode code) {
  return kNames.at(static_cast<size_t>(code)).second;
}

std::span<const ErrorCode> all_error_codes() { return kCodes; }

}  // namespace lockstep
