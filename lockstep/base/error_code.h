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
  /// This process can open no more files or map no more memory.
  kOutOfResources,
  /// The system can't start another thread.
  kThreadStart,
  /// A program can't be started.
  kProcessStart,
  /// The cryptographic library lacks a function or failed.
  kCryptography,
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
  /// An environment variable has a value that can't be used.
  kBadVariable,
  /// An environment variable that is needed is not set.
  kMissingVariable,
  /// This build does not include the requested part (CUDA, NCCL).
  kNotInBuild,
  /// The inputs do not fit together, or can't be cut along the batch
  /// dimension.
  kBadBatch,
  /// A model can't take inputs of that shape.
  kBadModelInput,
  /// A tensor's device, layout, type or size does not suit the operation.
  kBadTensor,
  /// A rank or a root is outside of the group, or a list of ranks names the
  /// same rank twice.
  kBadRank,
  /// The optimizer can't be used with these parameters.
  kBadOptimizer,
  /// The loss function did not return a scalar with a graph.
  kBadLoss,
  /// The loss of a batch is not the mean of its shards' losses.
  kLossNotMean,
  /// The losses of a batch have a total weight of 0.
  kEmptyBatch,

  // Devices.
  /// The machine has no such device, or this process may not use it.
  kNoSuchDevice,
  /// A device is named twice.
  kDuplicateDevice,
  /// Tensors that must be on one device, or on one kind of device, are not.
  kMixedDevices,
  /// Data that is copied between two devices arrives changed, or not at all.
  kBadLink,
  /// A device's own software reported an error.
  kDeviceFailed,
  /// A thread can't be bound to its cores.
  kCoreBinding,
  /// A task of a device's worker would wait for the same worker.
  kWorkerDeadlock,

  // Data, models and checkpoints.
  /// A dataset's file is truncated or has invalid content.
  kMalformedData,
  /// A file can't be downloaded: the server can't be reached, is not trusted,
  /// refuses it, or sent something else.
  kDownloadFailed,
  /// A safetensors file does not follow the format, or holds a type that can't
  /// be loaded.
  kMalformedSafetensors,
  /// A JSON file does not follow the format, or lacks a required value.
  kMalformedJson,
  /// A model's description asks for more parameters than allowed.
  kModelTooLarge,
  /// There is no checkpoint, or no complete one, at that path.
  kCheckpointMissing,
  /// A checkpoint was changed after it was written, or contradicts itself.
  kCheckpointDamaged,
  /// A checkpoint has a format that this version does not read.
  kCheckpointVersion,
  /// A checkpoint could not be written.
  kCheckpointNotSaved,
  /// A state dict, an optimizer's state or a snapshot does not fit the model.
  kStateMismatch,
  /// The run to resume and the content of its folder contradict each other.
  kResumeConflict,
  /// A checkpoint does not name the dataset that it was trained on.
  kUnknownDataset,

  // Ranks and their collectives.
  /// The ranks can't connect to each other.
  kRanksNotConnected,
  /// Ranks called different collectives, or with sizes that do not match.
  kCallsDiffer,
  /// A collective or message did not complete: a rank ended, stalled or
  /// aborted, or it timed out.
  kCollectiveFailed,
  /// An operation timed out behind a callback in the queue.
  kQueueTimeout,
  /// Ranks disagree about the samples of a batch.
  kSamplesDiffer,
  /// Parameters, their shapes or their gradients differ between ranks.
  kParametersDiffer,
  /// The backend does not work with these devices or hosts.
  kBackendUnsuitable,
  /// These ranks share no memory.
  kNoSharedMemory,
  /// The ranks of a host can't set up their shared memory.
  kSharedMemorySetup,
  /// A collective under test returned wrong data.
  kWrongData,

  // The parallel engine.
  /// A replica threw an exception; the message includes its text.
  kReplicaFailed,
  /// A shard's gradients differ each time they are computed.
  kNotRepeatable,
  /// The module can't be copied, or its copy is a different network.
  kNotCloneable,
  /// A replica does not compute the same as the module it was made from.
  kReplicaDiffers,
  /// The module was changed in a way that can't be followed.
  kModuleChanged,
  /// A forward wrote to a parameter.
  kParameterWritten,
  /// A parameter is not dense.
  kDenseParameter,
  /// A gradient is sparse.
  kSparseGradient,
  /// The backward of a parallel region can't be differentiated.
  kDoubleBackward,
  /// A graph that was freed can't be used for another backward.
  kBackwardTwice,
  /// A tensor that every shard's loss uses has a hook.
  kHookedLeaf,
  /// The loss of several ranks depends on a tensor outside of the module.
  kForeignLeaf,
  /// A parameter was written to while all ranks share its memory.
  kChangedWhileShared,

  // DistributedDataParallel.
  /// The module has no parameter that requires a gradient.
  kNothingToTrain,
  /// Parameters got no gradient in a backward.
  kUnusedParameters,
  /// A parameter got several gradients in one backward.
  kRepeatedGradient,
  /// A parameter that was frozen when the module was wrapped is now trained.
  kFrozenParameter,
  /// A forward or backward of a DDP model ran inside another backward of it.
  kNestedPass,
  /// Gradients of this rank only and sums over the ranks were accumulated
  /// together.
  kMixedAccumulation,
  /// A rank ran out of inputs, or join() was called where it is not allowed.
  kUnevenInputs,
  /// A comm hook broke its contract, or a hook is already registered.
  kCommHook,
  /// An earlier step failed, so that the ranks may differ.
  kFailedBefore,

  // Launching, the job's store and its agents.
  /// The nodes of the job did not find each other, or do not agree.
  kRendezvousFailed,
  /// The memory that the agent shares with its workers can't be used.
  kControlBlock,
  /// No socket can listen at that address.
  kCannotListen,
  /// The job's store can't be reached, has ended, or does not answer in time.
  kStoreUnreachable,
  /// A value that another rank should put into the store did not arrive in
  /// time.
  kStoreTimeout,
  /// The job's store refused a request or a client.
  kStoreRefused,
  /// The job's store runs another version of Lockstep.
  kStoreVersion,
  /// A message of the store does not follow the protocol.
  kStoreProtocol,
  /// The job's secret is missing, can't be read, or can be read by others.
  kBadSecret,
  /// The two ends of a connection know different secrets.
  kWrongSecret,

  // Runs and their reports.
  /// A loss, a gradient or a parameter is not finite.
  kNotFinite,
  /// A process that was started for a measurement failed.
  kPeerProcess,
  /// A rank's report about a run can't be read.
  kMalformedReport,
};

/// Returns the name that messages, error files and docs/errors.md use, such as
/// "unused-parameters".
std::string_view name_of(ErrorCode code);

/// Returns all codes in the order of the enum.
std::span<const ErrorCode> all_error_codes();

}  // namespace lockstep
