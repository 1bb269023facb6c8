#include "lockstep/tools/measurement/operator_recording.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "lockstep/base/error.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/worker.h"

namespace lockstep {
namespace {

using c10::DispatchKey;

constexpr std::array<std::string_view, 18> kMatrixOperators{
    "aten::mm",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::bmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::mv",
    "aten::addmv",
    "aten::linear",
    "aten::mkldnn_linear",
    "aten::convolution",
    "aten::convolution_overrideable",
    "aten::mkldnn_convolution",
    "aten::convolution_backward",
    "aten::convolution_backward_overrideable",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_scaled_dot_product_fused_attention_overrideable"};

constexpr std::array<std::string_view, 4> kCopies{
    "aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat"};

constexpr std::array<std::string_view, 4> kAllocations{
    "aten::empty", "aten::new_empty", "aten::resize_", "aten::set_"};

/// The facts about an operator that don't depend on its arguments.
struct KnownOperator {
  OperatorKind kind = OperatorKind::kNone;
  bool calls_others = true;  ///< its kernels are operators of their own
  bool has_autocast = false;
};

/// Returns true if the result shares memory with an argument that the operator
/// does not write.
bool is_view(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const auto& returned) {
    return returned.alias_info() != nullptr &&
           !returned.alias_info()->isWrite();
  });
}

KnownOperator look_up(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  if (!name) return {};  // a range that a program named
  const auto found = c10::Dispatcher::singleton().findOp(*name);
  if (!found || !found->hasSchema()) return {};
  KnownOperator known;
  known.has_autocast = found->hasKernelForDispatchKey(DispatchKey::AutocastCPU);
  known.calls_others =
      found->hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
      !found->hasKernelForDispatchKey(DispatchKey::CPU);
  if (known.calls_others) return known;
  const auto is_named = [&](std::string_view text) {
    return name->name == text;
  };
  if (std::ranges::any_of(kMatrixOperators, is_named)) {
    known.kind = OperatorKind::kMatrix;
  } else if (std::ranges::any_of(kCopies, is_named)) {
    known.kind = OperatorKind::kCopy;
  } else if (!is_view(found->schema()) &&
             std::ranges::none_of(kAllocations, [&](std::string_view text) {
               return name->name.starts_with(text);
             })) {
    known.kind = OperatorKind::kElementwise;
  }
  return known;
}

/// Looks each operator up once in each thread.
const KnownOperator& known_operator(const at::RecordFunction& function) {
  thread_local std::unordered_map<std::string, KnownOperator> known;
  std::string name = function.name();
  name += '.';
  name += function.overload_name();
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(std::move(name), look_up(function)).first->second;
}

/// Returns true if autocast's kernel runs first, which casts the arguments and
/// calls the operator again.
bool is_wrapped_by_autocast(const KnownOperator& known) {
  // Tensors have this key always, and a thread without autocast leaves it out.
  return known.has_autocast &&
         !c10::impl::tls_is_dispatch_key_excluded(DispatchKey::AutocastCPU);
}

/// Returns true if a copy changes the type.
bool is_cast(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 2 || !inputs[0].isTensor()) return false;
  const auto type = inputs[0].toTensor().scalar_type();
  if (name == "aten::copy_") {
    return inputs[1].isTensor() && inputs[1].toTensor().scalar_type() != type;
  }
  return name == "aten::_to_copy" && inputs[1].isInt() &&
         inputs[1].toScalarType() != type;
}

MatrixCall matrix_call(const at::RecordFunction& function) {
  MatrixCall call{
      .name = *function.operator_name(), .arguments = {}, .tensors = {}};
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) {
      call.arguments.push_back(input.isTensor() ? c10::IValue() : input);
      continue;
    }
    const at::Tensor& tensor = input.toTensor();
    call.tensors.emplace_back(call.arguments.size(),
                              TensorLayout{.storage = tensor.storage().data(),
                                           .offset = tensor.storage_offset(),
                                           .sizes = tensor.sizes().vec(),
                                           .strides = tensor.strides().vec(),
                                           .type = tensor.scalar_type()});
    call.arguments.emplace_back();
  }
  return call;
}

/// An operator of this thread that has begun.
struct Begun {
  RecordedOperator recorded;
  std::optional<MatrixCall> matrix_call;
};

struct ThreadState {
  std::vector<Begun> begun;
  bool is_in_kernel = false;
  int64_t nested = 0;  ///< begun operators within the kernel
};

ThreadState& state_of_thread() {
  thread_local ThreadState state;
  return state;
}

std::atomic<OperatorRecording*> active{nullptr};

}  // namespace

OperatorRecording::OperatorRecording() {
  OperatorRecording* expected = nullptr;
  if (!active.compare_exchange_strong(expected, this)) {
    throw InvalidArgument("device",
                          {.code = ErrorCode::kMisuse,
                           .what = "this process already records operators",
                           .fix = "destroy the other OperatorRecording first"});
  }
  handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                      .needsInputs(true)
                                      .scopes({at::RecordScope::FUNCTION}));
}

OperatorRecording::~OperatorRecording() {
  at::removeCallback(handle_);
  active = nullptr;
}

OperatorLog OperatorRecording::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_, {});
}

std::unique_ptr<at::ObserverContext> OperatorRecording::begin(
    const at::RecordFunction& function) {
  ThreadState& state = state_of_thread();
  if (state.is_in_kernel) {
    ++state.nested;
    return nullptr;
  }
  const int64_t entered_ns = trace_clock_ns();
  const KnownOperator& known = known_operator(function);
  const bool calls_others = known.calls_others || is_wrapped_by_autocast(known);
  Begun begun{
      .recorded = {.name = function.name(),
                   .kind = calls_others ? OperatorKind::kNone : known.kind,
                   .device = current_device(),
                   .thread = std::this_thread::get_id(),
                   .entered_ns = entered_ns},
      .matrix_call = {}};
  OperatorKind& kind = begun.recorded.kind;
  if (kind == OperatorKind::kCopy &&
      is_cast(begun.recorded.name, function.inputs())) {
    kind = OperatorKind::kCast;
  }
  if (kind == OperatorKind::kMatrix) begun.matrix_call = matrix_call(function);
  state.is_in_kernel = !calls_others;
  state.begun.push_back(std::move(begun));
  state.begun.back().recorded.begin_ns = trace_clock_ns();
  return nullptr;
}

void OperatorRecording::end(const at::RecordFunction& /*function*/,
                            at::ObserverContext* /*context*/) {
  ThreadState& state = state_of_thread();
  if (state.is_in_kernel && state.nested > 0) {
    --state.nested;
    return;
  }
  if (state.begun.empty()) return;  // it began before the recording
  const int64_t end_ns = trace_clock_ns();
  Begun begun = std::move(state.begun.back());
  state.begun.pop_back();
  state.is_in_kernel = false;
  begun.recorded.end_ns = end_ns;
  OperatorRecording* recording = active;
  if (recording == nullptr) return;
  const std::lock_guard lock(recording->mutex_);
  OperatorLog& log = recording->log_;
  if (begun.matrix_call) {
    begun.recorded.matrix_call = static_cast<int64_t>(log.matrix_calls.size());
    log.matrix_calls.push_back(std::move(*begun.matrix_call));
  }
  log.operators.push_back(std::move(begun.recorded));
  log.operators.back().left_ns = trace_clock_ns();
}

}  // namespace lockstep
