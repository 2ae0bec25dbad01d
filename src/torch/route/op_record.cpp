// SPDX-License-Identifier: Apache-2.0
#include "torch/route/op_record.h"

#include <ATen/core/jit_type.h>

#include <algorithm>

#include "torch/route/device_check.h"

namespace torch_fl {
ArgKind KindOf(const c10::Type& declared) {
  const c10::Type* type = &declared;
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType().get();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::kTensor;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::kDevice;
    case c10::TypeKind::StorageType:
      return ArgKind::kStorage;
    case c10::TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    case c10::TypeKind::ListType: {
      const auto& element = type->castRaw<c10::ListType>()->getElementType();
      return KindOf(*element) == ArgKind::kTensor ? ArgKind::kTensorList : ArgKind::kOther;
    }
    default:
      return ArgKind::kOther;
  }
}

bool ReturnsView(const c10::FunctionSchema& schema) {
  return std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

namespace {

// Backend kernels that look at requires_grad of their inputs (to decide what backward will need). The only ones known in torch 2.11;
// aliases of all other operators do without, because it costs an allocation.
constexpr const char* kAskRequiresGrad[] = {"aten::_sparse_mm_reduce_impl", "aten::_fused_sdp_choice"};

// Arguments that a kernel writes although the schema does not say so. An alias shares their bytes anyway; a staged copy must
// know what to write back.
struct SilentWrite {
  const char* op;
  const char* argument;
};
constexpr SilentWrite kSilentWrites[] = {
    {"aten::native_batch_norm", "running_mean"},
    {"aten::native_batch_norm", "running_var"},
    {"aten::batch_norm_update_stats", "running_mean"},
    {"aten::batch_norm_update_stats", "running_var"},
    {"aten::batch_norm_gather_stats", "running_mean"},
    {"aten::batch_norm_gather_stats", "running_var"},
    {"aten::batch_norm_gather_stats_with_counts", "running_mean"},
    {"aten::batch_norm_gather_stats_with_counts", "running_var"},
};

bool WritesSilently(const std::string& op, const std::string& argument) {
  const std::string base = op.substr(0, op.find('.'));
  return std::any_of(std::begin(kSilentWrites), std::end(kSilentWrites),
                     [&](const SilentWrite& write) { return base == write.op && argument == write.argument; });
}

// Never a fallback: what makes values out of nothing (the writing half of ones(), arange() and their like), and copies, whose
// purpose is to move bytes.
constexpr const char* kNeverFallback[] = {"aten::zero_",        "aten::fill_",
                                          "aten::arange",       "aten::range",
                                          "aten::eye",          "aten::linspace",
                                          "aten::logspace",     "aten::randperm",
                                          "aten::tril_indices", "aten::triu_indices",
                                          "aten::copy_",        "aten::_foreach_copy_",
                                          "aten::_copy_from",   "aten::_local_scalar_dense"};

// Their results' values or sizes are needed on the host before the call returns: a device's kernels wait for the stream there.
constexpr const char* kSynchronizes[] = {"aten::_local_scalar_dense",
                                         "aten::equal",
                                         "aten::nonzero",
                                         "aten::masked_select",
                                         "aten::_unique",
                                         "aten::_unique2",
                                         "aten::unique_dim",
                                         "aten::unique_consecutive",
                                         "aten::repeat_interleave",
                                         "aten::bincount"};

template <size_t kCount>
bool Listed(const char* const (&list)[kCount], const std::string& name) {
  const std::string base = name.substr(0, name.find('.'));
  return std::find(std::begin(list), std::end(list), base) != std::end(list);
}

}  // namespace

OpRecord::OpRecord(const c10::OperatorHandle& op) : handle(op) {
  const c10::FunctionSchema& schema = op.schema();
  name = schema.name();
  if (!schema.overload_name().empty()) name += "." + schema.overload_name();
  short_name = name.rfind("aten::", 0) == 0 ? name.c_str() + 6 : name.c_str();
  bool takes_tensor = false;
  for (const c10::Argument& argument : schema.arguments()) {
    ArgRecord record{
        KindOf(*argument.type()),
        (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) || WritesSilently(name, argument.name()),
        AcceptsCpuTensor(name, argument.name())};
    takes_tensor |= record.kind == ArgKind::kTensor || record.kind == ArgKind::kTensorList;
    has_generator |= record.kind == ArgKind::kGenerator;
    args.push_back(record);
  }
  for (bool written : {true, false})
    for (size_t i = 0; i < args.size(); ++i)
      if (args[i].kind != ArgKind::kOther && args[i].written == written) mapped.push_back(static_cast<uint8_t>(i));
  asks_requires_grad =
      std::find(std::begin(kAskRequiresGrad), std::end(kAskRequiresGrad), name) != std::end(kAskRequiresGrad);
  cpu_scalars = AcceptsCpuScalars(name);
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded) || has_generator;
  draws_silently = random && !has_generator;
  // Factories, views and random operators never reach the copying fallback: the first two own no data to copy, the last would
  // draw from the wrong generator.
  stageable = takes_tensor && !random && !ReturnsView(schema) && !Listed(kNeverFallback, name);
  copies = name == "aten::copy_" || name == "aten::_foreach_copy_";
  synchronizes = Listed(kSynchronizes, name);
  alias_counter = router::GetCounter(name, "alias");
  cpu_counter = router::GetCounter(name, "cpu");
}

}  // namespace torch_fl
