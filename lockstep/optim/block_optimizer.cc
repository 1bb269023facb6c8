#include "lockstep/optim/block_optimizer.h"

#include <algorithm>
#include <bit>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/optim/parameters.h"

namespace lockstep::optim {

using torch::Tensor;

namespace {

/// Returns text that says that some of `parameters` are listed twice, or "".
std::string listed_twice(const std::vector<Tensor>& parameters) {
  const size_t twice = parameters.size() - unique(parameters).size();
  if (twice == 0) return "";
  return fmt::format(
      "of {}, {} listed twice (a submodule that is registered twice?); "
      "torch::optim updates {} twice in each step, PyTorch once",
      counted(static_cast<int64_t>(parameters.size()), "parameter"),
      twice == 1 ? "1 is" : fmt::format("{} are", twice),
      twice == 1 ? "it" : "them");
}

/// Returns whether the type, device, shape and strides of `parameter` are those
/// of `layout`.
template <class Layout>
bool is_laid_out_as(const Tensor& parameter, const Layout& layout) {
  if (!parameter.options().type_equal(layout.options) ||
      parameter.device() != layout.options.device() ||
      parameter.sizes() != at::IntArrayRef(layout.sizes)) {
    return false;
  }
  for (int64_t d = 0; d < parameter.dim(); ++d) {
    // The stride of a dimension of size 1 does not matter.
    if (parameter.size(d) > 1 &&
        parameter.stride(d) != layout.strides[static_cast<size_t>(d)]) {
      return false;
    }
  }
  return true;
}

}  // namespace

BlockOptimizer::BlockOptimizer(torch::optim::Optimizer& optimizer,
                               StateFactory make_state, Kernels kernels,
                               FirstMomentum first_momentum)
    : optimizer_(optimizer),
      type_(typeid(optimizer)),
      make_state_(std::move(make_state)),
      first_momentum_(first_momentum),
      rule_(make_update_rule(optimizer, kernels)),
      parameters_(parameters_of(optimizer)),
      placement_({}),
      is_first_(parameters_.size()) {
  check_type(optimizer);
  check_parameters();
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    group_of_.resize(group_of_.size() + groups[g].params().size(), g);
  }
  placement_ = Placement(parameters_);
  for (const Tensor& parameter : parameters_) {
    layouts_.push_back(layout_of(parameter));
    if (!counts_steps(optimizer)) continue;
    steps_.push_back(0);
    step_counts_.push_back(torch::zeros(
        {}, torch::dtype(torch::kFloat32).device(parameter.device())));
  }
  refresh_views();
}

BlockOptimizer::~BlockOptimizer() = default;

std::unique_ptr<BlockOptimizer> BlockOptimizer::adopt(
    torch::optim::Optimizer& optimizer, const StateFactory& make_state) {
  const std::vector<Tensor> parameters = parameters_of(optimizer);
  if (!serves(optimizer) || parameters.empty() ||
      !std::all_of(parameters.begin(), parameters.end(), can_be_cut)) {
    return nullptr;
  }
  if (const std::string duplicates = listed_twice(parameters);
      !duplicates.empty()) {
    warn_once("parameter-listed-twice", "optim",
              duplicates +
                  "; pass lockstep::optim::unique("
                  "model->parameters())");
    return nullptr;
  }
  return std::make_unique<BlockOptimizer>(optimizer, make_state);
}

bool BlockOptimizer::serves(const torch::optim::Optimizer& optimizer) {
  return make_update_rule(optimizer, Kernels::kFused) != nullptr;
}

void BlockOptimizer::check_type(const torch::optim::Optimizer& optimizer) {
  if (serves(optimizer)) return;
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = "the update of this optimizer can't be divided between "
                        "threads",
                .expected = "torch::optim::SGD, Adam or AdamW, and not a class "
                            "that derives from them",
                .got = c10::demangle(typeid(optimizer).name()),
                .fix = "call the optimizer's own step()"});
}

void BlockOptimizer::check_parameters() const {
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
  const std::string duplicates = listed_twice(parameters_);
  if (duplicates.empty()) return;
  throw InvalidArgument(
      "optim", {.code = ErrorCode::kBadOptimizer,
                .what = duplicates,
                .expected = "each parameter once",
                .fix = "pass lockstep::optim::unique(model->parameters())"});
}

bool BlockOptimizer::is_for(const torch::optim::Optimizer& optimizer) const {
  if (&optimizer != &optimizer_ || typeid(optimizer) != type_) return false;
  size_t p = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    for (const Tensor& parameter : optimizer.param_groups()[g].params()) {
      if (p == parameters_.size() || !parameters_[p].is_same(parameter) ||
          group_of_[p++] != g) {
        return false;
      }
    }
  }
  if (p != parameters_.size()) return false;
  // After a cast of the module, an optimizer without state may be a new one at
  // this address. For one with state, begin_step() says what is wrong.
  for (p = 0; p < parameters_.size() && optimizer.state().empty(); ++p) {
    if (!is_laid_out_as(parameters_[p], layouts_[p])) return false;
  }
  return true;
}

void BlockOptimizer::follow() {
  rule_->read(optimizer_);
  const size_t first_new = slots_.size();
  add_slots();
  take_state(first_new);
}

void BlockOptimizer::add_slots() {
  const std::vector<std::string> names = state_names(optimizer_);
  while (slots_.size() < names.size()) {
    const Slot& slot = slots_.emplace_back(names[slots_.size()], make_state_,
                                           parameters_, placement_);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      has_shared_state_ = has_shared_state_ || is_shared_tensor(slot.tensor(p));
    }
  }
}

void BlockOptimizer::take_state(size_t first_new) {
  // SGD makes the buffer of a parameter in its first step.
  const bool makes_all =
      counts_steps(optimizer_) || first_momentum_ == FirstMomentum::kZeros;
  for (size_t p = 0; p < parameters_.size() && !slots_.empty(); ++p) {
    std::optional<ParamState> state = find_state(optimizer_, parameters_[p]);
    const bool is_made = !state;
    if (is_made) {
      if (!makes_all) continue;
      state = find_or_add_state(optimizer_, parameters_[p]);
    }
    for (size_t s = 0; s < slots_.size(); ++s) {
      Tensor& held = *state->tensors[s];
      const Tensor& own = slots_[s].tensor(p);
      const bool is_new = s >= first_new;
      if (!is_made && !is_new && held.is_same(own)) continue;
      if (!is_made && is_new && s == 0 && !held.defined()) refuse_lost_state(p);
      // A new slot has zeros.
      if (!is_new || held.defined()) {
        note_loaded(slots_[s], p, held);
        slots_[s].load(p, held, parameters_[p], placement_);
      }
      held = own;
    }
    if (state->step != nullptr) steps_[p] = *state->step;
  }
}

void BlockOptimizer::refuse_lost_state(size_t p) const {
  throw InvalidArgument(
      "optim",
      {.code = ErrorCode::kBadOptimizer,
       .what = fmt::format("the state of the optimizer's parameter {} is "
                           "missing: it was divided between devices when the "
                           "optimizer was saved, or by a wrapper that is gone",
                           p),
       .expected = "the state of a whole parameter",
       .got = "none",
       .fix = "call model->unshare_parameters() before the optimizer is saved "
              "or passed to another wrapper"});
}

void BlockOptimizer::release_state() {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto state = find_state(optimizer_, parameters_[p]);
    // step() of the torch optimizer expects tensors in all state it finds.
    for (size_t s = 0; s < slots_.size() && state; ++s) {
      Tensor& held = *state->tensors[s];
      const Tensor& own = slots_[s].tensor(p);
      if (!held.is_same(own)) continue;
      held = own.defined() ? own.clone()
                           : slots_[s]
                                 .whole(p, parameters_[p], placement_)
                                 .to(parameters_[p].device());
    }
  }
}

void BlockOptimizer::check_partition(const std::vector<Device>& devices) const {
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

void BlockOptimizer::partition_state(const std::vector<Device>& devices) {
  check_partition(devices);
  if (state_names(optimizer_).empty() || devices == placement_.devices()) {
    return;
  }
  Placement placement = placement_.divided(devices);
  std::vector<Slot> moved;
  for (const Slot& slot : slots_) moved.push_back(slot.moved_to(placement));
  // Before a step has gradients, there is room.
  make_copies(placement);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto state = find_state(optimizer_, parameters_[p]);
    for (size_t s = 0; s < moved.size() && state; ++s) {
      Tensor& held = *state->tensors[s];
      if (held.is_same(slots_[s].tensor(p))) held = moved[s].tensor(p);
    }
  }
  slots_ = std::move(moved);
  placement_ = std::move(placement);
  memory_.stop();
}

void BlockOptimizer::make_copies(const Placement& placement) {
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
        {}, torch::dtype(torch::kFloat).device(placement.device_of(b))));
  }
  std::vector<Scratch> scratch;
  for (const Device& device : placement.devices()) {
    const auto options =
        torch::dtype(torch::kByte).device(torch_device(device));
    scratch.push_back({.parameter = torch::empty({bytes}, options),
                       .gradient = torch::empty({bytes}, options)});
  }
  step_copies_ = std::move(step_copies);
  scratch_ = std::move(scratch);
}

NamedState BlockOptimizer::state_dict() const {
  NamedState state = optim::state_dict(optimizer_, [&](size_t s, size_t p) {
    // Divided state is not in the torch optimizer.
    const bool is_divided = s < slots_.size() && !slots_[s].tensor(p).defined();
    return is_divided ? slots_[s].whole(p, parameters_[p], placement_)
                      : Tensor();
  });
  if (first_momentum_ == FirstMomentum::kZeros) state.erase(kHasMomentumBuffer);
  return state;
}

void BlockOptimizer::load_state_dict(const NamedState& state) {
  follow();
  memory_.stop();
  changed_ = 0;
  optim::load_state_dict(
      optimizer_, state, [&](size_t s, size_t p, const Tensor& loaded) {
        // The options may need less than there is.
        if (s >= slots_.size()) return loaded.clone();
        note_loaded(slots_[s], p, loaded);
        slots_[s].load(p, loaded, parameters_[p], placement_);
        return slots_[s].tensor(p);
      });
}

void BlockOptimizer::for_each_state(
    const std::function<void(const std::string& name, size_t p,
                             const Tensor& state)>& visit) const {
  for (const Slot& slot : slots_) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (slot.tensor(p).defined()) visit(slot.name(), p, slot.tensor(p));
    }
  }
}

void BlockOptimizer::note_loaded(const Slot& slot, size_t p,
                                 const Tensor& state) {
  if (!is_shared_tensor(slot.tensor(p))) return;
  Fnv1a hash;
  hash.add(checksum_of(state));
  loaded_[{slot.name(), p}] = hash.value();
}

std::string BlockOptimizer::common_text() const {
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

std::string BlockOptimizer::options_text() const {
  std::string text;
  for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    text += fmt::format("group {}: {}\n", g, rule_->options_text(g));
  }
  if (counts_steps(optimizer_)) return text;
  // A parameter without momentum makes its first step.
  std::vector<int64_t> buffers(optimizer_.param_groups().size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (find_state(optimizer_, parameters_[p])) ++buffers[group_of_[p]];
  }
  return text + fmt::format("parameters with momentum by group: {}",
                            fmt::join(buffers, ", "));
}

std::string BlockOptimizer::steps_text() const {
  if (steps_.empty()) return "";
  const auto [least, most] = std::minmax_element(steps_.begin(), steps_.end());
  if (*least == *most) return fmt::format("{} steps", *least);
  Fnv1a hash;
  for (const int64_t steps : steps_) hash.add_unit(steps);
  return fmt::format("{} to {} steps ({:x})", *least, *most, hash.value());
}

void BlockOptimizer::step() {
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

void BlockOptimizer::check_not_shared() const {
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
       .fix = "pass it there; or call model->unshare_parameters() first"});
}

void BlockOptimizer::begin_step(const std::vector<bool>& has_gradient) {
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
  if (memory_.is_on()) {
    memory_.begin_step();
    follow_writes();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient[i]) continue;
    torch::autograd::impl::bump_version(parameters_[i]);
    count_step(i);
  }
  for (size_t i = 0; i < parameters_.size() && memory_.is_on(); ++i) {
    versions_[i] = version_of(i);
  }
}

void BlockOptimizer::count_step(size_t p) {
  is_first_[p] = false;
  if (!rule_->uses_state(group_of_[p])) return;
  std::optional<ParamState> state = find_state(optimizer_, parameters_[p]);
  const bool is_made = !state;
  if (is_made) state = find_or_add_state(optimizer_, parameters_[p]);
  if (state->step != nullptr) {
    steps_[p] = ++*state->step;
    step_counts_[p].fill_(steps_[p]);
  } else if (is_made) {
    is_first_[p] = true;
    *state->tensors[0] = slots_[0].tensor(p);
  }
}

void BlockOptimizer::update(int64_t block, const Tensor& gradient) {
  const auto at = static_cast<size_t>(block);
  Tensor& parameter = parameter_views_[at];
  const auto print = [&] { return print_of_block(at); };
  if (memory_.is_on() && !memory_.unseal(at, print)) {
    changed_ = placement_.parameter_of(at) + 1;
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

void BlockOptimizer::update_block(size_t block, const Tensor& parameter,
                                  const Tensor& gradient) {
  const size_t p = placement_.parameter_of(block);
  BlockUpdate update{.parameter = parameter,
                     .gradient = gradient,
                     .group = group_of_[p],
                     .is_first = is_first_[p]};
  for (size_t s = 0; s < slots_.size(); ++s) {
    update.state[s] = &slots_[s].view(block);
  }
  if (!steps_.empty()) {
    update.step = steps_[p];
    update.step_count = step_counts_[p].device() == parameter.device()
                            ? step_counts_[p]
                            : step_copies_[block].fill_(steps_[p]);
  }
  rule_->update(update);
}

void BlockOptimizer::check_memory(const void* owner, bool all) {
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

std::optional<size_t> BlockOptimizer::changed_parameter() const {
  const size_t changed = changed_;
  return changed == 0 ? std::nullopt : std::optional(changed - 1);
}

int64_t BlockOptimizer::version_of(size_t p) const {
  const auto version = [](const Tensor& tensor) -> int64_t {
    return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
  };
  int64_t sum = version(parameters_[p]);
  for (const Slot& slot : slots_) sum += version(slot.tensor(p));
  return sum;
}

void BlockOptimizer::follow_writes() {
  versions_.resize(parameters_.size());
  std::vector<bool> is_written(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    is_written[p] = versions_[p] != version_of(p);
  }
  for (size_t b = 0; b < blocks().size(); ++b) {
    if (is_written[placement_.parameter_of(b)]) memory_.forget(b);
  }
}

MemoryWatch::Print BlockOptimizer::print_of_block(size_t block) const {
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
  if (parameter_is_shared_[placement_.parameter_of(block)]) {
    add(parameter, print.sum);
  } else if (parameter.numel() > 1) {
    // A program that doubles a single element changes one bit of its exponent.
    add(parameter, print.writable_sum);
  }
  return print;
}

void BlockOptimizer::refresh_views() {
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

BlockOptimizer::Layout BlockOptimizer::layout_of(const Tensor& tensor) {
  return {.options = tensor.options(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

void BlockOptimizer::check_layout(size_t p) const {
  const Tensor& parameter = parameters_[p];
  const Layout& first = layouts_[p];
  if (is_laid_out_as(parameter, first)) return;
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

}  // namespace lockstep::optim
