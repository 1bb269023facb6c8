#include "lockstep/data/dataset_source.h"

#include <fmt/format.h>

namespace lockstep::data::detail {
namespace {

[[noreturn]] void refuse(const std::string& got) {
  throw InvalidArgument(
      "data", {.code = ErrorCode::kMisuse,
               .what = "the samples of a batch can't be stacked",
               .expected = "tensors of one shape, numbers, or tuples, lists or "
                           "dicts of them, alike in every sample",
               .got = got,
               .fix = "give a function that joins them, as the second "
                      "argument of Trainer::data() or to "
                      "DatasetSource::set_collate()"});
}

c10::IValue stack_tuples(const std::vector<c10::IValue>& values) {
  const size_t count = values.front().toTupleRef().elements().size();
  std::vector<c10::IValue> stacked;
  for (size_t i = 0; i < count; ++i) {
    std::vector<c10::IValue> sample_values;
    for (const c10::IValue& value : values) {
      const auto& elements = value.toTupleRef().elements();
      if (elements.size() != count) refuse("tuples of different lengths");
      sample_values.push_back(elements[i]);
    }
    stacked.push_back(stack(sample_values));
  }
  return c10::ivalue::Tuple::create(std::move(stacked));
}

torch::Tensor stack_tensors(const std::vector<c10::IValue>& values) {
  std::vector<torch::Tensor> tensors;
  for (const c10::IValue& value : values) {
    tensors.push_back(value.toTensor());
    if (tensors.back().sizes() != tensors.front().sizes()) {
      refuse(c10::str("shapes ", tensors.front().sizes(), " and ",
                      tensors.back().sizes()));
    }
  }
  return torch::stack(tensors);
}

c10::IValue stack_dicts(const std::vector<c10::IValue>& values) {
  const auto first = values.front().toGenericDict();
  auto stacked = first.copy();
  for (const auto& entry : first) {
    std::vector<c10::IValue> sample_values;
    for (const c10::IValue& value : values) {
      const auto dict = value.toGenericDict();
      if (!dict.contains(entry.key()) || dict.size() != first.size()) {
        refuse("dicts with different keys");
      }
      sample_values.push_back(dict.at(entry.key()));
    }
    stacked.insert_or_assign(entry.key(), stack(sample_values));
  }
  return stacked;
}

}  // namespace

c10::IValue stack(const std::vector<c10::IValue>& values) {
  const c10::IValue& first = values.front();
  for (const c10::IValue& value : values) {
    if (value.tagKind() != first.tagKind()) {
      refuse(value.tagKind() + " next to " + first.tagKind());
    }
  }
  if (first.isTensor()) return stack_tensors(values);
  if (first.isInt() || first.isDouble() || first.isBool()) {
    std::vector<torch::Tensor> numbers;
    for (const c10::IValue& value : values) {
      numbers.push_back(torch::scalar_tensor(
          value.toScalar(), first.isInt()    ? torch::kInt64
                            : first.isBool() ? torch::kBool
                                             : torch::kFloat32));
    }
    return torch::stack(numbers);
  }
  if (first.isTuple()) return stack_tuples(values);
  if (first.isTensorList()) {
    const size_t count = first.toTensorList().size();
    c10::List<torch::Tensor> stacked;
    for (size_t i = 0; i < count; ++i) {
      std::vector<c10::IValue> sample_values;
      for (const c10::IValue& value : values) {
        const auto list = value.toTensorList();
        if (list.size() != count) refuse("lists of different lengths");
        sample_values.emplace_back(list.get(i));
      }
      stacked.push_back(stack_tensors(sample_values));
    }
    return stacked;
  }
  if (first.isGenericDict()) return stack_dicts(values);
  refuse(first.tagKind());
}

std::vector<c10::IValue> as_arguments(const c10::IValue& inputs, size_t count) {
  const bool is_any = count == 0;
  if (count == 1 || (is_any && !inputs.isTuple())) return {inputs};
  const size_t found =
      inputs.isTuple() ? inputs.toTupleRef().elements().size() : 1;
  if (!is_any && found != count) {
    throw InvalidArgument(
        "data",
        {.code = ErrorCode::kMisuse,
         .what = "the samples don't fit the module's forward()",
         .expected = fmt::format("a tuple of {} inputs, its arguments", count),
         .got = fmt::format("{}", found)});
  }
  return inputs.toTupleRef().elements().vec();
}

int64_t size_of_dataset(std::optional<size_t> size) {
  if (size) return static_cast<int64_t>(*size);
  throw InvalidArgument("data",
                        {.code = ErrorCode::kMisuse,
                         .what = "the dataset does not know its size",
                         .expected = "a dataset with a size",
                         .got = "an endless one",
                         .fix = "give it a size(): the samples of an epoch"});
}

}  // namespace lockstep::data::detail
