#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <ATen/record_function.h>
#include <c10/core/ScalarType.h>

#include "lockstep/device/device.h"

namespace lockstep {

/// The kind of work that an operator of LibTorch does.
enum class OperatorKind : uint8_t {
  kMatrix,       ///< matrix products, convolutions and fused attention
  kCast,         ///< copies that change the type
  kCopy,         ///< other copies
  kElementwise,  ///< all other kernels: normalization and reductions, too
  kNone,         ///< views and allocations, and operators that call others
};

/// The layout of a tensor in its storage.
struct TensorLayout {
  /// Address of the storage. Tensors with the same one share memory.
  const void* storage = nullptr;
  int64_t offset = 0;  ///< in elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType type = c10::ScalarType::Float;
};

/// A call of an operator of the kind kMatrix, without the data of its tensors.
struct MatrixCall {
  c10::OperatorName name;
  std::vector<c10::IValue> arguments;  ///< None in place of a tensor
  /// Tensors by their index in `arguments`.
  std::vector<std::pair<size_t, TensorLayout>> tensors;
};

/// The outermost kernel of a call: what it calls is part of it.
struct RecordedOperator {
  std::string name;  ///< "aten::addmm"
  OperatorKind kind = OperatorKind::kNone;
  Device device;             ///< current_device() of its thread
  std::thread::id thread;    ///< thread that ran it
  int64_t begin_ns = 0;      ///< of trace_clock_ns()
  int64_t end_ns = 0;        ///< same
  int64_t entered_ns = 0;    ///< when the recording of its begin began
  int64_t left_ns = 0;       ///< when the recording of its end ended
  int64_t matrix_call = -1;  ///< index in OperatorLog::matrix_calls
};

struct OperatorLog {
  std::vector<RecordedOperator> operators;  ///< in the order of their ends
  std::vector<MatrixCall> matrix_calls;
};

/// Records the operators of LibTorch that all threads of this process call
/// while the object exists, through at::RecordFunction as the profiler does.
///
/// Operators that only call others, such as aten::linear, are kNone, and their
/// kernels are recorded. An operator that autocast wraps is one of these, so
/// that its casts are recorded as casts.
///
/// No operator may run in another thread while the object is made or destroyed.
class OperatorRecording {
 public:
  /// Throws InvalidArgument if there is another recording in this process.
  OperatorRecording();
  ~OperatorRecording();
  OperatorRecording(const OperatorRecording&) = delete;
  OperatorRecording& operator=(const OperatorRecording&) = delete;

  /// Returns what was recorded since the last call, and forgets it.
  OperatorLog take();

 private:
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function);
  static void end(const at::RecordFunction& function,
                  at::ObserverContext* context);

  std::mutex mutex_;
  OperatorLog log_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

}  // namespace lockstep
