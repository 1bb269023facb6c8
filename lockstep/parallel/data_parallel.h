#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/script.h>
#include <torch/torch.h>

#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/replicas/data_parallel_options.h"
#include "lockstep/parallel/replicas/replica_group.h"

namespace lockstep {

/// nn.DataParallel for C++: runs a module on several devices of one process.
///
///     auto model = lockstep::DataParallel(net, lockstep::devices("auto"));
///     auto loss = torch::cross_entropy_loss(model->forward(x), y);
///     loss.backward();
///     optimizer.step();
///
/// `M` is a torch::nn::Module whose forward() is not overloaded and takes and
/// returns tensors, tuples, vectors, dicts or IValues. Batches are split along
/// `dim`, gradients are summed onto the module's own parameters, buffers are
/// those of the first shard, and what a replica throws comes out as a
/// ReplicaError naming its device. Not thread-safe.
///
/// What is changed on the module after it was wrapped holds from the next
/// forward on: values, types and memory of its parameters and buffers (also by
/// torch::load), requires_grad, training or evaluation of any part, the options
/// of torch::nn's modules, a submodule that was replaced, and plain members of
/// `M` itself. Plain members of other classes of yours within `M`, and those
/// that reset() or the factory sets, can't be seen: call rebuild() after you
/// changed one.
template <class M>
class DataParallelImpl {
 public:
  using Result = detail::ForwardResult<M>;
  using Output = std::decay_t<Result>;

  /// `is_copied`: `factory` copies the module with all its members.
  DataParallelImpl(std::shared_ptr<M> module,
                   const std::function<std::shared_ptr<M>()>& factory,
                   bool is_copied, std::vector<Device> devices,
                   DataParallelOptions options)
      : module_(std::move(module)),
        group_(std::make_shared<ReplicaGroup>(
            [module = module_, is_copied] {
              return watched_handle(module, is_copied);
            },
            [factory] { return typed_handle(factory()); }, std::move(devices),
            std::move(options))) {}

  /// As the module's own forward(), on all devices.
  template <class... Inputs>
  Output forward(Inputs&&... inputs) {
    return detail::from_ivalue<Output>(
        group_->forward(pack(std::forward<Inputs>(inputs)...)));
  }

  /// One step that keeps every device equally busy: forward, `loss` and
  /// backward per shard, reduction and `optimizer`'s update by all threads.
  ///
  /// `loss(output, target)` is the mean over a shard's samples, called in the
  /// shard's thread; the step's gradient is that of the mean over the batch,
  /// however uneven the split. Gradients that are in .grad already are added to
  /// the step's, and .grad is empty afterwards. Nothing is updated if the loss,
  /// or the norm that `options` limits, is not finite. With several ranks each
  /// passes its own part of the batch.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss, optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return group_->train_step(pack_inputs(input), c10::IValue(target),
                              typed<Target>(loss), &optimizer, options);
  }
  /// Likewise, with any optimizer of LibTorch's, its parameter groups and its
  /// learning-rate scheduler. SGD, Adam and AdamW are updated block by block,
  /// as Lockstep's own are; others by their step() (on every rank), which must
  /// need no closure.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss, torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {}) {
    return group_->train_step(pack_inputs(input), c10::IValue(target),
                              typed<Target>(loss), optimizer, options);
  }
  /// Likewise, but updates nothing: adds the gradients to the parameters'
  /// .grad, as backward() does, also those that are not finite.
  template <class Input, class Target, class Loss>
  StepResult train_step(const Input& input, const Target& target,
                        const Loss& loss,
                        const TrainStepOptions& options = {}) {
    return group_->train_step(pack_inputs(input), c10::IValue(target),
                              typed<Target>(loss), nullptr, options);
  }

  /// The wrapped module: its parameters, names and checkpoint are those of a
  /// module that was never wrapped.
  std::shared_ptr<M> module() const { return module_; }
  std::vector<torch::Tensor> parameters() const {
    return module_->parameters();
  }
  auto named_parameters() const { return module_->named_parameters(); }
  std::vector<torch::Tensor> buffers() const { return module_->buffers(); }
  auto named_buffers() const { return module_->named_buffers(); }
  void zero_grad(bool set_to_none = true) { module_->zero_grad(set_to_none); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  bool is_training() const { return module_->is_training(); }
  /// Changes the module's type; the replicas follow at the next forward.
  void to(torch::Dtype dtype) { module_->to(dtype); }

  const std::vector<Device>& devices() const { return group_->devices(); }
  const Device& output_device() const { return group_->output_device(); }
  int64_t shards() const { return group_->shards(); }
  /// How many samples of a batch each device gets.
  std::vector<int64_t> split(int64_t batch) const {
    return group_->split(batch);
  }
  /// Of the last step.
  const PhaseTimes& phase_times() const { return group_->phase_times(); }
  const std::vector<std::unique_ptr<Worker>>& workers() const {
    return group_->workers();
  }
  /// Zeros for an optimizer's state: shared, where ranks share memory.
  torch::Tensor make_state(const torch::Tensor& parameter) {
    return group_->make_state(parameter);
  }
  int64_t copy_bytes() const { return group_->copy_bytes(); }
  /// Gives this rank rank 0's buffers, as they were after the last step; the
  /// next forward would do it. What was loaded since stays.
  void load_buffers() { group_->load_buffers(); }
  /// Makes the replicas anew from the module as it is now. Of several ranks
  /// each has to call it.
  void rebuild() { group_->rebuild(); }
  /// Of several ranks on one host: shares the parameters now rather than at the
  /// first train_step() with an optimizer. Collective.
  void share_parameters() { group_->share_parameters(); }
  /// Of several ranks on one host, which share the parameters while an
  /// optimizer of Lockstep's is passed to train_step(): gives this rank
  /// parameters of its own, so that they can be changed by hand. The next step
  /// shares them again, after it found them equal on all ranks.
  void unshare_parameters() { group_->unshare_parameters(); }
  /// Sets the number that keys the random streams of the next step.
  void set_step(int64_t step) { group_->set_step(step); }

 private:
  static ModuleHandle typed_handle(std::shared_ptr<M> module) {
    ModuleHandle handle = handle_of(module);
    handle.forward = [module](const std::vector<c10::IValue>& inputs) {
      return detail::call_forward(*module, inputs);
    };
    return handle;
  }

  /// The handle of the original: its identity tells of changed members, too.
  static ModuleHandle watched_handle(const std::shared_ptr<M>& module,
                                     bool is_copied) {
    ModuleHandle handle = typed_handle(module);
    watch_members(
        handle, [module] { return detail::bytes_of_members(*module); },
        is_copied);
    return handle;
  }

  template <class... Inputs>
  static std::vector<c10::IValue> pack(Inputs&&... inputs) {
    using Arguments = detail::ForwardArguments<M>;
    static_assert(sizeof...(Inputs) == std::tuple_size_v<Arguments>,
                  "forward() takes another number of arguments");
    return detail::pack<Arguments>(std::index_sequence_for<Inputs...>(),
                                   std::forward<Inputs>(inputs)...);
  }

  template <class Input>
  static std::vector<c10::IValue> pack_inputs(const Input& input) {
    return pack(input);
  }
  template <class... Inputs>
  static std::vector<c10::IValue> pack_inputs(
      const std::tuple<Inputs...>& inputs) {
    return std::apply([](const auto&... each) { return pack(each...); },
                      inputs);
  }

  template <class Target, class Loss>
  static ShardLoss typed(const Loss& loss) {
    return [&loss](const c10::IValue& output, const c10::IValue& target) {
      return loss(detail::from_ivalue<Output>(output),
                  detail::from_ivalue<Target>(target));
    };
  }

  std::shared_ptr<M> module_;
  std::shared_ptr<ReplicaGroup> group_;
};

/// For TorchScript: inputs and output are IValues. Attributes of the script
/// that are neither tensors nor modules are followed, and what a forward writes
/// to them is kept as its buffers are.
template <>
class DataParallelImpl<torch::jit::Module> {
 public:
  DataParallelImpl(torch::jit::Module module, std::vector<Device> devices,
                   DataParallelOptions options);

  c10::IValue forward(const std::vector<c10::IValue>& inputs);
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {});
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        torch::optim::Optimizer& optimizer,
                        const TrainStepOptions& options = {});
  StepResult train_step(const std::vector<c10::IValue>& inputs,
                        const c10::IValue& target, const ShardLoss& loss,
                        const TrainStepOptions& options = {});

  torch::jit::Module& module() { return module_; }
  std::vector<torch::Tensor> parameters() const;
  void train(bool on = true) { module_.train(on); }
  void eval() { module_.eval(); }
  void rebuild() { group_->rebuild(); }
  const std::vector<Device>& devices() const { return group_->devices(); }
  const std::vector<std::unique_ptr<Worker>>& workers() const {
    return group_->workers();
  }

 private:
  torch::jit::Module module_;
  std::shared_ptr<ReplicaGroup> group_;
};

/// Holds a DataParallelImpl<M>: copies share it. Use `->`.
template <class M>
class DataParallel {
 public:
  /// A module that can be cloned (torch::nn::Cloneable).
  DataParallel(std::shared_ptr<M> module, std::vector<Device> devices,
               DataParallelOptions options = {})
      : impl_(std::make_shared<DataParallelImpl<M>>(
            module,
            [module] {
              return std::dynamic_pointer_cast<M>(clone_module(*module));
            },
            /*is_copied=*/true, std::move(devices), std::move(options))) {}
  /// The same, from a holder made by TORCH_MODULE.
  DataParallel(const torch::nn::ModuleHolder<M>& module,
               std::vector<Device> devices, DataParallelOptions options = {})
      : DataParallel(module.ptr(), std::move(devices), std::move(options)) {}
  /// Any module; `factory` builds another one like it for each replica.
  DataParallel(std::shared_ptr<M> module,
               const std::function<std::shared_ptr<M>()>& factory,
               std::vector<Device> devices, DataParallelOptions options = {})
      : impl_(std::make_shared<DataParallelImpl<M>>(
            std::move(module), factory, /*is_copied=*/false, std::move(devices),
            std::move(options))) {}

  DataParallelImpl<M>* operator->() const { return impl_.get(); }
  DataParallelImpl<M>& operator*() const { return *impl_; }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) const {
    return impl_->forward(std::forward<Inputs>(inputs)...);
  }

 private:
  std::shared_ptr<DataParallelImpl<M>> impl_;
};

template <>
class DataParallel<torch::jit::Module> {
 public:
  DataParallel(torch::jit::Module module, std::vector<Device> devices,
               DataParallelOptions options = {})
      : impl_(std::make_shared<DataParallelImpl<torch::jit::Module>>(
            std::move(module), std::move(devices), std::move(options))) {}
  DataParallelImpl<torch::jit::Module>* operator->() const {
    return impl_.get();
  }

 private:
  std::shared_ptr<DataParallelImpl<torch::jit::Module>> impl_;
};

template <class M>
requires requires { typename M::ContainedType; }
DataParallel(const M&, std::vector<Device>)
    ->DataParallel<typename M::ContainedType>;
template <class M>
requires requires { typename M::ContainedType; }
DataParallel(const M&, std::vector<Device>, DataParallelOptions)
    ->DataParallel<typename M::ContainedType>;
DataParallel(torch::jit::Module, std::vector<Device>)
    ->DataParallel<torch::jit::Module>;
DataParallel(torch::jit::Module, std::vector<Device>, DataParallelOptions)
    ->DataParallel<torch::jit::Module>;

}  // namespace lockstep
