// Operators of the simulated devices. What needs no data (allocations, views)
// is done at once. Everything else is a kernel of the CPU that the current
// stream runs later, on the second mapping of the memory.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "lockstep/device/intra_op.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/accelerator/sim/allocator.h"
#include "tests/accelerator/sim/faults.h"
#include "tests/accelerator/sim/generator.h"
#include "tests/accelerator/sim/memory.h"
#include "tests/accelerator/sim/stream.h"

namespace lockstep::sim {
namespace {

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

bool is_sim(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

/// Returns `tensor` of a device as a kernel sees it: a tensor of the CPU on the
/// second mapping, which does not keep the memory.
Tensor seen_by_kernel(const Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  return at::from_blob(DeviceMemory::get().for_kernel(tensor.data_ptr()),
                       tensor.sizes(), tensor.strides(), options);
}

/// Returns `value` with `change` applied to its tensors.
template <class Change>
IValue map_tensors(const IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> changed;
    for (const Tensor& tensor : value.toTensorVector()) {
      changed.push_back(change(tensor));
    }
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> changed;
    for (const auto& tensor : value.toOptionalTensorList().vec()) {
      changed.push_back(tensor.has_value() ? std::optional(change(*tensor))
                                           : std::nullopt);
    }
    return changed;
  }
  return value;
}

/// Returns an argument as the kernel gets it. Tensors of the host are copied,
/// as the caller may change them before the kernel runs.
IValue argument_of_kernel(const IValue& value) {
  if (value.isGenerator()) return for_kernel(value.toGenerator());
  if (value.isDevice()) return c10::Device(c10::kCPU);
  return map_tensors(value, [](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (is_sim(tensor)) return seen_by_kernel(tensor);
    Tensor copy = tensor.clone();
    auto* const impl = copy.unsafeGetTensorImpl();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    return copy;
  });
}

/// Returns a tensor on `type` of the same sizes, strides and type.
Tensor same_on(const Tensor& tensor, c10::DeviceType type) {
  if (!tensor.defined()) return tensor;
  Tensor made = at::empty_strided(tensor.sizes(), tensor.strides(),
                                  tensor.options().device(type));
  if (type == c10::kCPU) made.zero_();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return made;
}

IValue argument_of_meta(const IValue& value) {
  if (value.isGenerator()) return {};
  if (value.isDevice()) return c10::Device(c10::kMeta);
  return map_tensors(
      value, [](const Tensor& tensor) { return same_on(tensor, c10::kMeta); });
}

IValue argument_of_zeros(const IValue& value) {
  if (value.isGenerator()) {
    return at::Generator(at::make_generator<at::CPUGeneratorImpl>());
  }
  if (value.isDevice()) return c10::Device(c10::kCPU);
  return map_tensors(
      value, [](const Tensor& tensor) { return same_on(tensor, c10::kCPU); });
}

Tensor empty_like_it(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(
      tensor.sizes(), tensor.strides(),
      tensor.options().device(
          c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device()))));
}

void set_threads(int threads) {
  static thread_local int now = 0;
  if (std::exchange(now, threads) != threads) {
    set_intra_op_threads_of_this_thread(threads);
  }
}

/// Runs `kernel` in stream `stream`, with the right number of threads.
template <class Kernel>
void launch(const c10::Stream& stream, Kernel kernel) {
  const auto faults = current_faults();
  const bool fails = take_failing_kernel();
  StreamThread& thread = thread_of(stream);
  thread.enqueue([kernel = std::move(kernel), faults, fails,
                  device = thread.device(),
                  threads = thread.kernel_threads()]() mutable {
    if (fails) throw std::runtime_error("sim: a kernel failed");
    set_threads(threads);
    const at::AutoDispatchBelowAutograd below_autograd;
    const auto start = std::chrono::steady_clock::now();
    kernel();
    if (device == faults->slow_device) {
      std::this_thread::sleep_for((std::chrono::steady_clock::now() - start) *
                                  (faults->slow_factor - 1));
    }
  });
}

/// An operator that is called on the devices, with its arguments.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op), schema_(op.schema()) {
    const auto count = schema_.arguments().size();
    arguments_.assign(stack.end() - static_cast<ptrdiff_t>(count), stack.end());
    TORCH_CHECK(!draws_from_default_generator(), schema_.operator_name(),
                " would draw from the generator of the CPU");
    for (size_t i = 0; i < count; ++i) {
      const auto& argument = schema_.arguments()[i];
      const auto* alias = argument.alias_info();
      if (alias != nullptr && alias->isWrite()) written_.push_back(i);
      const auto optional = argument.type()->cast<c10::OptionalType>();
      if (arguments_[i].isNone() && optional != nullptr &&
          optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
        arguments_[i] = default_generator(current_device());
      }
    }
    for (const auto& result : schema_.returns()) {
      const auto* alias = result.alias_info();
      TORCH_CHECK(alias == nullptr || alias->isWrite(), "sim has no view ",
                  schema_.operator_name());
    }
  }

  /// Throws if tensors are on different devices, as LibTorch's kernels of GPUs
  /// do. Each operator on a list of tensors treats them one by one.
  void check_devices() const {
    for (const IValue& value : arguments_) {
      if (!value.isTensor() || !is_sim(value.toTensor())) continue;
      const c10::Device device = value.toTensor().device();
      TORCH_CHECK(device.index() == current_device(), schema_.operator_name(),
                  ": expected all tensors to be on the same device, but found "
                  "at least two devices, sim:",
                  current_device(), " and ", device);
    }
  }

  /// Pushes the results to `stack`, which has lost the arguments.
  void run(Stack& stack) {
    if (!written_.empty()) {
      resize_outputs();
      enqueue({});
      push_written(stack);
      return;
    }
    Stack results;
    if (!infer(results)) {
      run_at_once(stack);
      return;
    }
    std::vector<Tensor> targets;
    for (const IValue& result : results) {
      stack.push_back(map_tensors(result, [&](const Tensor& meta) {
        Tensor made = empty_like_it(meta);
        targets.push_back(made.defined() ? seen_by_kernel(made) : made);
        return made;
      }));
    }
    enqueue(std::move(targets));
  }

 private:
  template <class Convert>
  Stack converted(const Convert& convert) const {
    Stack stack;
    for (const IValue& value : arguments_) stack.push_back(convert(value));
    return stack;
  }
  Stack for_kernel_arguments() const {
    return converted([](const IValue& v) { return argument_of_kernel(v); });
  }

  /// Sets `results` to tensors without data that are as the results: by
  /// LibTorch's own inference, or by running the kernel on zeros. Returns false
  /// if the results depend on the data.
  bool infer(Stack& results) const {
    static std::mutex mutex;
    static std::unordered_set<c10::OperatorName> has_no_meta_kernel;
    if (depends_on_data()) return false;
    const at::AutoDispatchBelowAutograd below_autograd;
    {
      const std::lock_guard lock(mutex);
      if (has_no_meta_kernel.contains(op_.operator_name())) {
        results = run_on_zeros();
        return true;
      }
    }
    try {
      results = converted([](const IValue& v) { return argument_of_meta(v); });
      op_.callBoxed(results);
    } catch (const std::exception&) {
      results = run_on_zeros();  // throws for wrong arguments
      const std::lock_guard lock(mutex);
      has_no_meta_kernel.insert(op_.operator_name());
    }
    return true;
  }

  /// Returns whether the kernel would draw random numbers without a generator
  /// of the device.
  bool draws_from_default_generator() const {
    if (!op_.hasTag(at::Tag::nondeterministic_seeded)) return false;
    const auto& all = schema_.arguments();
    for (size_t i = 0; i < all.size(); ++i) {
      const auto optional = all[i].type()->cast<c10::OptionalType>();
      const bool is_generator =
          optional != nullptr &&
          optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
      if (is_generator) return false;
      if (all[i].name() == "dropout_p") return arguments_[i].toDouble() > 0;
    }
    return true;
  }

  Stack run_on_zeros() const {
    Stack stack =
        converted([](const IValue& value) { return argument_of_zeros(value); });
    op_.callBoxed(stack);
    return stack;
  }

  bool depends_on_data() const {
    static const std::unordered_set<std::string> names{
        "aten::nonzero",           "aten::masked_select",
        "aten::_unique2",          "aten::unique_dim",
        "aten::bincount",          "aten::repeat_interleave",
        "aten::unique_consecutive"};
    if (names.contains(op_.operator_name().name)) return true;
    for (const auto& result : schema_.returns()) {
      const auto kind = result.type()->kind();
      if (kind != c10::TypeKind::TensorType &&
          kind != c10::TypeKind::ListType) {
        return true;
      }
    }
    bool has_mask = false;
    for (const IValue& value : arguments_) {
      if (!value.isOptionalTensorList()) continue;
      map_tensors(value, [&](const Tensor& index) {
        has_mask |= index.defined() && (index.scalar_type() == at::kBool ||
                                        index.scalar_type() == at::kByte);
        return index;
      });
    }
    return has_mask;
  }

  /// Gives the tensors of an out= operator their sizes.
  void resize_outputs() const {
    bool has_empty = false;
    for (const size_t i : written_) {
      has_empty |= arguments_[i].isTensor() &&
                   schema_.arguments()[i].is_out() &&
                   arguments_[i].toTensor().numel() == 0;
    }
    if (!has_empty) return;
    Stack results;
    if (!infer(results)) return;
    for (size_t i = 0; i < results.size() && i < written_.size(); ++i) {
      const Tensor& out = arguments_[written_[i]].toTensor();
      if (out.sizes() != results[i].toTensor().sizes()) {
        out.resize_(results[i].toTensor().sizes());
      }
    }
  }

  /// Lets the stream run the kernel, and copy its results to `targets`.
  void enqueue(std::vector<Tensor> targets) const {
    launch(current_stream(), [op = op_, stack = for_kernel_arguments(),
                              targets = std::move(targets)]() mutable {
      op.callBoxed(stack);
      size_t next = 0;
      for (const IValue& result : stack) {
        if (next == targets.size()) break;
        map_tensors(result, [&](const Tensor& tensor) {
          const Tensor& target = targets[next++];
          if (target.defined()) target.copy_(tensor);
          return tensor;
        });
      }
    });
  }

  /// Runs the kernel at once, after the work of the stream. Its results arrive
  /// in device memory when the stream says so.
  void run_at_once(Stack& stack) const {
    const c10::Stream stream = current_stream();
    thread_of(stream).drain();
    Stack results = for_kernel_arguments();
    {
      const at::AutoDispatchBelowAutograd below_autograd;
      op_.callBoxed(results);
    }
    for (const IValue& result : results) {
      stack.push_back(map_tensors(result, [&](const Tensor& computed) {
        Tensor made = empty_like_it(computed);
        if (made.defined() && made.numel() > 0) {
          launch(stream, [target = seen_by_kernel(made), computed] {
            target.copy_(computed);
          });
        }
        return made;
      }));
    }
  }

  void push_written(Stack& stack) const {
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
      stack.push_back(arguments_[written_.at(i)]);
    }
  }

  c10::OperatorHandle op_;
  const c10::FunctionSchema& schema_;
  Stack arguments_;
  std::vector<size_t> written_;  // arguments that it changes
};

/// Returns the device of the first tensor of a device, or the current one.
c10::DeviceIndex device_of_arguments(const Stack& stack, size_t count) {
  c10::DeviceIndex index = static_cast<c10::DeviceIndex>(current_device());
  bool is_found = false;
  for (auto it = stack.end() - static_cast<ptrdiff_t>(count);
       it != stack.end() && !is_found; ++it) {
    if (it->isDevice() && it->toDevice().type() == kSim &&
        it->toDevice().has_index()) {
      index = it->toDevice().index();
      is_found = true;
    }
    map_tensors(*it, [&](const Tensor& tensor) {
      if (!is_found && is_sim(tensor)) {
        index = tensor.device().index();
        is_found = true;
      }
      return tensor;
    });
  }
  return index;
}

void run_on_device(const c10::OperatorHandle& op, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const c10::DeviceGuard guard(
      c10::Device(kSim, device_of_arguments(*stack, count)));
  Call call(op, *stack);
  call.check_devices();
  torch::jit::drop(*stack, count);
  call.run(*stack);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
             std::optional<at::Layout> /*layout*/,
             std::optional<at::Device> device, std::optional<bool> /*pinned*/,
             std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator(), kKeys,
                                   c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> type,
                     std::optional<at::Layout> /*layout*/,
                     std::optional<at::Device> device,
                     std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys,
                                           c10::dtype_or_default(type));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size,
                     std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!format || *format == at::MemoryFormat::Contiguous,
              "sim resizes contiguous tensors only");
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const c10::Storage& storage = self.storage();
  const size_t bytes =
      self.itemsize() *
      static_cast<size_t>(self.storage_offset() + self.numel());
  if (bytes <= storage.nbytes()) return self;
  const c10::DeviceGuard guard(self.device());
  c10::DataPtr data = allocator().allocate(bytes);
  if (storage.nbytes() > 0) {
    allocator().copy_data(data.get(), storage.data(), storage.nbytes());
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
  return self;
}

/// Lets `destination` wait for what `source` has been given so far.
void wait_for_stream(const c10::Stream& destination,
                     const c10::Stream& source) {
  Event event;
  thread_of(source).enqueue([at = event.renew()] { Event::mark(*at); });
  thread_of(destination).enqueue([at = event.point()] { Event::wait(*at); });
}

/// Copies between two devices without peer access: over memory of the host.
void copy_over_host(const Tensor& to, const Tensor& from) {
  const c10::Stream source = current_stream(from.device().index());
  const c10::Stream destination = current_stream(to.device().index());
  const Tensor host = at::empty_strided(from.sizes(), from.strides(),
                                        from.options().device(at::kCPU));
  launch(source, [host, origin = seen_by_kernel(from)] { host.copy_(origin); });
  wait_for_stream(destination, source);
  launch(destination,
         [host, target = seen_by_kernel(to)] { target.copy_(host); });
  // As CUDA promises, the source may be written after the copy.
  wait_for_stream(source, destination);
}

/// Copies between two devices as CUDA does: in the stream of the source, after
/// what the stream of the destination has done, which waits for the copy.
void copy_to_peer(const Tensor& to, const Tensor& from) {
  const auto faults = current_faults();
  if (!faults->peer_access) return copy_over_host(to, from);
  const c10::Stream source = current_stream(from.device().index());
  const c10::Stream destination = current_stream(to.device().index());
  wait_for_stream(source, destination);
  const int a = from.device().index();
  const int b = to.device().index();
  launch(source, [target = seen_by_kernel(to), origin = seen_by_kernel(from), a,
                  b, faults] {
    while (faults->hang_copy && faults->hang_copy(a, b) &&
           faults == current_faults() && !are_streams_stopped()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (faults->drop_copy && faults->drop_copy(a, b)) return;
    target.copy_(origin);
    if (faults->corrupt_copy && target.numel() > 0 && target.is_contiguous()) {
      faults->corrupt_copy(a, b, static_cast<std::byte*>(target.data_ptr()),
                           target.nbytes());
    }
  });
  wait_for_stream(destination, source);
}

void copy_to_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  const c10::Stream stream = current_stream(from.device().index());
  launch(stream, [to, origin = seen_by_kernel(from)] { to.copy_(origin); });
  if (!non_blocking || !to.is_pinned()) thread_of(stream).drain();
}

/// Copies to memory with gaps as CUDA does: to memory without gaps first, which
/// is all that the caller waits for. A kernel then moves the elements.
void copy_to_device(const Tensor& to, const Tensor& from, bool non_blocking) {
  const Tensor origin = non_blocking && from.is_pinned() ? from : from.clone();
  const c10::Stream stream = current_stream(to.device().index());
  const bool has_gaps = !to.is_contiguous() && to.strides() != from.strides();
  const Tensor arrived = has_gaps ? at::empty(to.sizes(), to.options()) : to;
  launch(stream,
         [target = seen_by_kernel(arrived), origin] { target.copy_(origin); });
  if (!non_blocking) thread_of(stream).drain();
  if (!has_gaps) return;
  launch(stream, [target = seen_by_kernel(to),
                  source = seen_by_kernel(arrived)] { target.copy_(source); });
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (!is_sim(from)) {
    copy_to_device(to, from, non_blocking);
  } else if (!is_sim(to)) {
    copy_to_host(to, from, non_blocking);
  } else if (from.device() != to.device()) {
    copy_to_peer(to, from);
  } else {
    launch(current_stream(to.device().index()),
           [target = seen_by_kernel(to), origin = seen_by_kernel(from)] {
             target.copy_(origin);
           });
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  thread_of(current_stream(self.device().index())).drain();
  return seen_by_kernel(self).item();
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset,
                    at::IntArrayRef size, at::IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}
Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  return at::cpu::set_(self, std::move(source));
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return at::cpu::set_(self, source);
}

void record_stream(Tensor& self, at::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

/// Lets a parameter of the host become one of a device, which Module::to()
/// needs. LibTorch knows this of the device types that it lists (CUDA, XPU,
/// HPU, ...), and PrivateUse1 is not among them.
bool has_compatible_shallow_copy_type(const Tensor& /*to*/,
                                      const Tensor& /*from*/) {
  return true;
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type",
               &has_compatible_shallow_copy_type);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
}

/// Returns whether LibTorch has a kernel of the CPU for `op`, but composes it
/// of other operators on device types without a kernel. The composition has
/// other bits.
bool has_kernel_of_cpu_only(const c10::OperatorHandle& op) {
  for (const auto& result : op.schema().returns()) {
    const auto* alias = result.alias_info();
    if (alias != nullptr && !alias->isWrite()) return false;
  }
  const auto& name = op.operator_name().name;
  return (op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
          op.hasKernelForDispatchKey(
              c10::DispatchKey::CompositeExplicitAutograd)) ||
         name == "aten::convolution" || name == "aten::convolution_backward";
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) != 0 || !op) continue;
    if (!has_kernel_of_cpu_only(*op)) continue;
    library.impl(c10::toString(name).c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&run_on_device>());
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &sim::empty_strided);
  library.impl("resize_", &resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<Tensor (*)(const Tensor&, at::IntArrayRef)>(
                           &at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace lockstep::sim
