#pragma once

#include <span>
#include <string_view>

namespace lockstep {

/// The kind of an error, for programs and tests. The texts of messages may
/// change between releases; codes do not. docs/errors.md lists the codes by
/// name and says what to do.
enum class ErrorCode {
  // Files and the system.
  /// A file or folder can't be opened, read, written or removed. The message
  /// includes the system's reason.
  kFileAccess,
  /// A file is larger than allowed.
  kFileTooLarge,
  /// There is not enough memory, on a device or in shared memory.
  kOutOfMemory,
  /// This process can open no more files, map no more memory or start no more
  /// threads.
  kOutOfResources,
  /// A program can't be started, or failed.
  kProcessStart,
  /// A signal ended the work before it was complete.
  kInterrupted,
  /// A function was called in a way that its contract excludes.
  kMisuse,

  // Arguments of the caller.
  /// An option, or a field of an options struct, has a value that can't be
  /// used.
  kBadOption,
  /// There is no model, dataset, backend, strategy, collective or category of
  /// that name.
  kUnknownName,
  /// An environment variable has a value that can't be used, or is not set.
  kBadVariable,
  /// This build, or the cryptographic library, does not include the requested
  /// part (CUDA, NCCL, a digest).
  kNotInBuild,
  /// The inputs do not fit together, or can't be cut along the batch
  /// dimension.
  kBadBatch,
  /// A tensor's device, layout, type or size does not suit the operation or the
  /// model.
  kBadTensor,
  /// A rank or a root is outside of the group, or a list of ranks names the
  /// same rank twice.
  kBadRank,
  /// The optimizer can't be used with these parameters.
  kBadOptimizer,
  /// The loss function did not return a scalar with a graph, or the loss of a
  /// batch is not the mean of its shards' losses.
  kBadLoss,
  /// The losses of a batch have a total weight of 0.
  kEmptyBatch,

  // Devices.
  /// The machine has no such device, or this process may not use it.
  kNoSuchDevice,
  /// Tensors that must be on one device, or on one kind of device, are not.
  kMixedDevices,
  /// Data that is copied between two devices arrives changed, or not at all.
  kBadLink,
  /// A device's own software reported an error, or a thread can't be bound to
  /// the device's cores.
  kDeviceFailed,

  // Data, models and checkpoints.
  /// A file that is read (a dataset, JSON, safetensors, a report) is truncated
  /// or does not follow its format.
  kMalformedData,
  /// A file can't be downloaded: the server can't be reached, is not trusted,
  /// refuses it, or sent something else.
  kDownloadFailed,
  /// There is no checkpoint, or no complete one, at that path.
  kCheckpointMissing,
  /// A checkpoint was changed after it was written, or contradicts itself.
  kCheckpointDamaged,
  /// A checkpoint has a format that this version of Lockstep does not read.
  kCheckpointVersion,
  /// A checkpoint could not be written.
  kCheckpointNotSaved,
  /// A state dict, an optimizer's state or a snapshot does not fit the model.
  kStateMismatch,
  /// The run to resume and the content of its folder contradict each other.
  kResumeConflict,

  // Ranks and their collectives.
  /// The ranks can't connect to each other.
  kRanksNotConnected,
  /// Ranks called different collectives, or with sizes that do not match.
  kCallsDiffer,
  /// A collective or message did not complete: a rank ended, stalled or
  /// aborted, or it timed out. Or a collective under test returned wrong data.
  kCollectiveFailed,
  /// Ranks disagree about the samples of a batch.
  kSamplesDiffer,
  /// Parameters, their shapes or their gradients differ between ranks.
  kParametersDiffer,
  /// These ranks share no memory, or can't set it up.
  kNoSharedMemory,

  // The parallel engine.
  /// A replica threw an exception; the message includes its text.
  kReplicaFailed,
  /// A shard's gradients differ each time they are computed.
  kNotRepeatable,
  /// The module can't be copied, or its copy is a different network.
  kNotCloneable,
  /// A replica does not compute the same as the module it was made from.
  kReplicaDiffers,
  /// The module was changed in a way that can't be followed, such as a frozen
  /// parameter that is now trained.
  kModuleChanged,
  /// A forward wrote to a parameter, or a parameter was written to while all
  /// ranks share its memory.
  kParameterWritten,
  /// The loss or its backward needs what can't be computed on several devices
  /// or ranks: a second derivative, a second backward, a pass within another
  /// one, a hook on a tensor that all shards use, or a tensor outside of the
  /// module.
  kUnsupportedGraph,

  // DistributedDataParallel.
  /// Parameters got no gradient in a backward.
  kUnusedParameters,
  /// A parameter got several gradients in one backward.
  kRepeatedGradient,
  /// A rank ran out of inputs, or join() was called where it is not allowed.
  kUnevenInputs,
  /// An earlier step failed, so that the ranks may differ.
  kFailedBefore,

  // Launching, the job's store and its agents.
  /// The nodes of the job did not find each other, or do not agree.
  kRendezvousFailed,
  /// No socket can listen at that address.
  kCannotListen,
  /// The job's store can't be reached, has ended, or does not answer in time.
  kStoreUnreachable,
  /// The job's store refused a request or a client.
  kStoreRefused,
  /// A message of the store does not follow the protocol, or the store runs
  /// another version of Lockstep.
  kStoreProtocol,
  /// The job's secret is missing, can't be read, can be read by others, or
  /// differs between the two ends of a connection.
  kBadSecret,

  // Runs and their reports.
  /// A loss, a gradient or a parameter is not finite.
  kNotFinite,
};

/// Returns the name that messages, error files and docs/errors.md use, such as
/// "unused-parameters".
std::string_view name_of(ErrorCode code);

/// Returns all codes in the order of the enum.
std::span<const ErrorCode> all_error_codes();

}  // namespace lockstep
