#include "lockstep/optim/optimizer.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

using torch::Tensor;

Optimizer::Optimizer(std::vector<Tensor> parameters, double lr)
    : parameters_(std::move(parameters)), lr_(lr), placement_({}) {
  if (parameters_.empty()) {
    throw InvalidArgument(
        "optim",
        {.code = ErrorCode::kBadOptimizer,
         .what = "an optimizer got no parameters",
         .fix = "pass model->parameters(), after the layers are registered"});
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& parameter = parameters_[i];
    if (!can_be_cut(parameter)) {
      throw InvalidArgument(
          "optim", {.code = ErrorCode::kBadOptimizer,
                    .what = fmt::format("parameter {} can't be optimized", i),
                    .expected = "a dense floating-point tensor",
                    .got = parameter.defined() ? parameter.toString()
                                               : "an undefined one"});
    }
  }
  check_no_duplicates();
  placement_ = Placement(parameters_);
  for (const Tensor& parameter : parameters_) {
    layouts_.push_back(layout_of(parameter));
  }
  refresh_views();
}

void Optimizer::check_no_duplicates() const {
  const size_t count = unique(parameters_).size();
  if (count == parameters_.size()) return;
  const size_t twice = parameters_.size() - count;
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = fmt::format(
           "of {}, {} listed twice (a submodule that is "
           "registered twice?); torch::optim would update "
           "{} twice in each step, PyTorch once",
           counted(static_cast<int64_t>(parameters_.size()), "parameter"),
           twice == 1 ? "1 is" : fmt::format("{} are", twice),
           twice == 1 ? "it" : "them"),
       .expected = "each parameter once",
       .fix = "pass lockstep::optim::unique(model->parameters())"});
}

std::vector<Tensor> unique(const std::vector<Tensor>& parameters) {
  std::unordered_set<const void*> seen;
  std::vector<Tensor> once;
  for (const Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      once.push_back(parameter);
    }
  }
  return once;
}

Slot& Optimizer::add_slot(std::string name, StateFactory make) {
  Slot& slot = slots_.emplace_back(std::move(name), std::move(make));
  if (parameters_.front().is_cpu()) {
    // Ranks that share memory agree on it when the optimizer is made.
    slot.allocate(parameters_, placement_);
    note_sharing(slot);
  } else {
    has_own_state_ = true;
  }
  return slot;
}

void Optimizer::note_sharing(const Slot& slot) {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const bool is_shared = is_shared_tensor(slot.tensor(p));
    has_shared_state_ = has_shared_state_ || is_shared;
    has_own_state_ = has_own_state_ || !is_shared;
  }
}

void Optimizer::allocate_state() {
  for (Slot& slot : slots_) slot.allocate(parameters_, placement_);
  if (is_partitioned() && scratch_.empty()) allocate_copies();
}

void Optimizer::allocate_copies() {
  const torch::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const Block& block : blocks()) {
    const Tensor& parameter = parameters_[static_cast<size_t>(block.tensor)];
    bytes = std::max(
        bytes, block.length * static_cast<int64_t>(parameter.element_size()));
  }
  std::vector<Tensor> step_copies;
  for (size_t b = 0; b < blocks().size() && !step_counts_.empty(); ++b) {
    step_copies.push_back(torch::empty(
        {}, torch::dtype(torch::kFloat).device(placement_.device_of(b))));
  }
  std::vector<Scratch> scratch;
  for (const Device& device : placement_.devices()) {
    const auto options =
        torch::dtype(torch::kByte).device(torch_device(device));
    scratch.push_back({.parameter = torch::empty({bytes}, options),
                       .gradient = torch::empty({bytes}, options)});
  }
  step_copies_ = std::move(step_copies);
  scratch_ = std::move(scratch);
}

void Optimizer::check_partition(const std::vector<Device>& devices) const {
  const c10::DeviceType type = parameters_.front().device().type();
  const bool fits =
      !devices.empty() && type != torch::kCPU &&
      std::all_of(devices.begin(), devices.end(),
                  [&](const Device& device) { return device.type == type; });
  if (fits) return;
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = "the optimizer's state can't be divided between these devices",
       .expected = type == torch::kCPU
                       ? "parameters on an accelerator"
                       : fmt::format("devices of the parameters' type, {}",
                                     c10::DeviceTypeName(type, true)),
       .got = devices.empty() ? "none" : join_names(devices)});
}

void Optimizer::partition_state(const std::vector<Device>& devices) {
  check_partition(devices);
  if (slots_.empty() || devices == placement_.devices()) return;
  Placement placement = placement_.divided(devices);
  std::vector<Slot> moved;
  for (const Slot& slot : slots_) moved.push_back(slot.moved_to(placement));
  std::move(moved.begin(), moved.end(), slots_.begin());
  placement_ = std::move(placement);
  scratch_.clear();
  memory_.stop();
  // Before a step has gradients, there is room for a whole tensor of a slot.
  allocate_state();
}

void Optimizer::update(int64_t block, const Tensor& gradient) {
  const auto at = static_cast<size_t>(block);
  Tensor& parameter = parameter_views_[at];
  const auto print = [&] { return print_of_block(at); };
  if (memory_.is_on() && !memory_.unseal(at, print)) {
    changed_ = parameter_of(at) + 1;
  }
  if (parameter.device() == placement_.device_of(at)) {
    update_block(at, parameter, gradient);
    if (memory_.is_on()) memory_.seal(at, print);
    return;
  }
  const size_t owner = placement_.owner_of(at);
  const Device home = place_of(parameter);
  const Device& device = placement_.devices()[owner];
  const auto copy_of = [&](const Tensor& tensor, const Tensor& memory) {
    Tensor copy = memory.narrow(0, 0, static_cast<int64_t>(tensor.nbytes()))
                      .view(tensor.scalar_type());
    copy_over({home, device}, copy, tensor);
    return copy;
  };
  const Tensor copy = copy_of(parameter, scratch_[owner].parameter);
  update_block(at, copy, copy_of(gradient, scratch_[owner].gradient));
  copy_over({device, home}, parameter, copy);
}

void Optimizer::check_memory(const void* owner, bool all) {
  const bool is_on = owner != nullptr && parameters_.front().is_cpu();
  if (!is_on || owner != owner_) memory_.stop();
  owner_ = owner;
  if (!is_on || memory_.is_on()) return;
  memory_.start(blocks().size(), all);
  parameter_is_shared_.clear();
  for (const Tensor& parameter : parameters_) {
    parameter_is_shared_.push_back(is_shared_tensor(parameter));
  }
}

std::optional<size_t> Optimizer::changed_parameter() const {
  const size_t changed = changed_;
  return changed == 0 ? std::nullopt : std::optional(changed - 1);
}

int64_t Optimizer::version_of(size_t p) const {
  const auto version = [](const Tensor& tensor) -> int64_t {
    return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
  };
  int64_t sum = version(parameters_[p]);
  for (const Slot& slot : slots_) sum += version(slot.tensor(p));
  return sum;
}

void Optimizer::note_loaded(const Slot& slot, size_t p, const Tensor& state) {
  if (!is_shared_tensor(slot.tensor(p))) return;
  Fnv1a hash;
  hash.add(checksum_of(state));
  loaded_[{slot.name(), p}] = hash.value();
}

std::string Optimizer::options_text() const {
  return fmt::format("lr {}", lr_);
}

std::string Optimizer::steps_text() const {
  if (step_counts_.empty() || !step_counts_.front().is_cpu()) return "";
  Fnv1a hash;
  std::vector<float> counts;
  for (const Tensor& count : step_counts_) {
    counts.push_back(*count.const_data_ptr<float>());
    hash.add_unit(std::bit_cast<uint32_t>(counts.back()));
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  return *least == *most ? fmt::format(", {} steps", *least)
                         : fmt::format(", {} to {} steps ({:x})", *least, *most,
                                       hash.value());
}

std::string Optimizer::common_text() const {
  std::string text = options_text() + steps_text();
  if (loaded_.empty()) return text;
  Fnv1a hash;
  for (const auto& [place, loaded] : loaded_) {
    hash.add(place.first);
    hash.add_unit(place.second);
    hash.add_unit(loaded);
  }
  return text + fmt::format(", loaded state {:x}", hash.value());
}

void Optimizer::follow_writes() {
  versions_.resize(parameters_.size());
  std::vector<bool> is_written(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    is_written[p] = versions_[p] != version_of(p);
  }
  for (size_t b = 0; b < blocks().size(); ++b) {
    if (is_written[parameter_of(b)]) memory_.forget(b);
  }
}

MemoryWatch::Print Optimizer::print_of_block(size_t block) const {
  MemoryWatch::Print print;
  const auto add = [&](const Tensor& tensor, uint64_t& sum) {
    sum = sum * 31 + sum_of_words(tensor);
    const auto bits = sampled_bits(tensor);
    for (size_t i = 0; i < bits.size(); ++i) {
      // A flipped bit of a tensor is one flipped bit of the result.
      print.sample[i] = std::rotl(print.sample[i], 1) ^ bits[i];
    }
  };
  for (const Slot& slot : slots_) add(slot.view(block), print.sum);
  const Tensor& parameter = parameter_views_[block];
  if (parameter_is_shared_[parameter_of(block)]) {
    add(parameter, print.sum);
  } else if (parameter.numel() > 1) {
    // A program that doubles a single element changes one bit of its exponent.
    add(parameter, print.writable_sum);
  }
  return print;
}

void Optimizer::add_step_counts() {
  for (const Tensor& parameter : parameters_) {
    step_counts_.push_back(torch::zeros(
        {}, torch::dtype(torch::kFloat32).device(parameter.device())));
  }
}

Tensor Optimizer::step_count_of(size_t block) {
  const Tensor& count = step_counts_[parameter_of(block)];
  if (count.device() == placement_.device_of(block)) return count;
  const Device& device = placement_.devices()[placement_.owner_of(block)];
  copy_over({place_of(count), device}, step_copies_[block], count);
  return step_copies_[block];
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = bytes_of(step_counts_);
  for (const Slot& slot : slots_) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const at::ScalarType type =
          slot.is_allocated() ? slot.type_of(p) : parameters_[p].scalar_type();
      bytes +=
          parameters_[p].numel() * static_cast<int64_t>(c10::elementSize(type));
    }
  }
  return bytes;
}

void Optimizer::for_each_state(
    const std::function<void(const std::string& name, size_t p,
                             const Tensor& state)>& visit) const {
  for (const Slot& slot : slots_) {
    if (!slot.is_allocated()) continue;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (slot.tensor(p).defined()) visit(slot.name(), p, slot.tensor(p));
    }
  }
}

Tensor Optimizer::whole_state(const Slot& slot, size_t p) const {
  if (slot.is_allocated()) return slot.whole(p, parameters_[p], placement_);
  return torch::zeros_like(parameters_[p].detach(), torch::device(torch::kCPU));
}

std::map<std::string, Tensor> Optimizer::state_dict() const {
  std::map<std::string, Tensor> state;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    for (const Slot& slot : slots_) {
      state[fmt::format("{}.{}", slot.name(), p)] = whole_state(slot, p);
    }
    if (!step_counts_.empty()) {
      state[fmt::format("step.{}", p)] = step_counts_[p];
    }
  }
  return state;
}

void Optimizer::load_state_dict(const std::map<std::string, Tensor>& state) {
  allocate_state();
  // Nothing is changed unless all of it fits.
  for (size_t p = 0; p < parameters_.size(); ++p) {
    for (const Slot& slot : slots_) {
      checked_entry(state, fmt::format("{}.{}", slot.name(), p),
                    parameters_[p].sizes(), slot.type_of(p));
    }
    if (!step_counts_.empty()) {
      checked_entry(state, fmt::format("step.{}", p), {}, torch::kFloat);
    }
  }
  memory_.stop();
  changed_ = 0;
  torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    for (Slot& slot : slots_) {
      const Tensor& loaded = state.at(fmt::format("{}.{}", slot.name(), p));
      note_loaded(slot, p, loaded);
      slot.load(p, loaded, parameters_[p], placement_);
    }
    if (!step_counts_.empty()) {
      step_counts_[p].copy_(state.at(fmt::format("step.{}", p)));
    }
  }
}

const Tensor& Optimizer::checked_entry(
    const std::map<std::string, Tensor>& state, const std::string& key,
    at::IntArrayRef sizes, at::ScalarType type) {
  const auto found = state.find(key);
  if (found == state.end()) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = fmt::format("the optimizer state has no '{}'", key),
         .fix = "resume with the optimizer that wrote the checkpoint"});
  }
  const Tensor& saved = found->second;
  if (saved.sizes() != sizes || saved.scalar_type() != type) {
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what =
             fmt::format("optimizer state '{}' has another shape or type", key),
         .expected =
             c10::str(caffe2::TypeMeta::fromScalarType(type), " ", sizes),
         .got = c10::str(saved.dtype(), " ", saved.sizes()),
         .fix = "resume with the model that wrote the checkpoint"});
  }
  return saved;
}

void Optimizer::refresh_views() {
  data_.clear();
  for (const Tensor& parameter : parameters_) {
    data_.push_back(parameter.const_data_ptr());
  }
  parameter_views_.clear();
  for (const Block& block : blocks()) {
    parameter_views_.push_back(
        memory_view(parameters_[static_cast<size_t>(block.tensor)],
                    block.offset, block.length));
  }
}

Optimizer::Layout Optimizer::layout_of(const Tensor& tensor) {
  return {.options = tensor.options(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

void Optimizer::check_layout(size_t p) const {
  const Tensor& parameter = parameters_[p];
  const Layout& first = layouts_[p];
  const auto has_strides = [&] {
    for (int64_t d = 0; d < parameter.dim(); ++d) {
      // The stride of a dimension of size 1 does not matter.
      if (parameter.size(d) > 1 &&
          parameter.stride(d) != first.strides[static_cast<size_t>(d)]) {
        return false;
      }
    }
    return true;
  };
  if (parameter.options().type_equal(first.options) &&
      parameter.device() == first.options.device() &&
      parameter.sizes() == at::IntArrayRef(first.sizes) && has_strides()) {
    return;
  }
  const Layout now = layout_of(parameter);
  const auto describe = [](const Layout& layout) {
    return c10::str(layout.options.dtype(), " on ", layout.options.device(),
                    ", shape ", at::IntArrayRef(layout.sizes), ", strides ",
                    at::IntArrayRef(layout.strides));
  };
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = fmt::format(
                    "parameter {} changed after the optimizer was made", p),
                .expected = describe(first),
                .got = describe(now),
                .fix = "call to() first and make the optimizer after it"});
}

void Optimizer::begin_step(const std::vector<bool>& has_gradient) {
  bool moved = false;
  changed_ = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    check_layout(i);
    moved = moved || parameters_[i].const_data_ptr() != data_[i];
  }
  if (moved) {
    refresh_views();
    memory_.stop();
  }
  allocate_state();
  if (memory_.is_on()) {
    memory_.begin_step();
    follow_writes();
  }
  ++steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_gradient[i]) torch::autograd::impl::bump_version(parameters_[i]);
  }
  count_step(has_gradient);
  for (size_t i = 0; i < parameters_.size() && memory_.is_on(); ++i) {
    versions_[i] = version_of(i);
  }
}

void Optimizer::check_not_shared() const {
  const bool shares_parameters =
      std::any_of(parameters_.begin(), parameters_.end(), is_shared_tensor);
  if (!shares_parameters && !has_shared_state_) return;
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = fmt::format("step() of an optimizer whose {} all ranks share: "
                           "each of them would make the update",
                           shares_parameters ? "parameters" : "state"),
       .expected = "the optimizer to be passed to train_step()",
       .fix = "pass it there; or, to call step() on each rank, make it "
              "without make_state and call train_step() without it"});
}

void Optimizer::step() {
  check_not_shared();
  std::vector<Tensor> gradients(parameters_.size());
  std::vector<bool> has_gradient(parameters_.size());
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      has_gradient[i] = true;
      gradients[i] = laid_out_like(gradient, parameters_[i]);
    }
  }
  begin_step(has_gradient);
  const auto count = static_cast<int64_t>(blocks().size());
  const auto on_gpu =
      std::find_if(parameters_.begin(), parameters_.end(),
                   [](const Tensor& parameter) { return !parameter.is_cpu(); });
  const c10::DeviceType device =
      on_gpu == parameters_.end() ? torch::kCPU : on_gpu->device().type();
  intra_op_for(device, count, [&](int64_t begin, int64_t end) {
    torch::NoGradGuard no_grad;
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks()[static_cast<size_t>(b)];
      const Tensor& gradient = gradients[static_cast<size_t>(block.tensor)];
      if (!gradient.defined()) continue;
      update(b, memory_view(gradient, block.offset, block.length));
    }
  });
}

void Optimizer::zero_grad() {
  for (Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace lockstep::optim
