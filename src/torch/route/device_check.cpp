// SPDX-License-Identifier: Apache-2.0
#include "torch/route/device_check.h"

#include <ATen/core/op_registration/adaption.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace torch_fl {
namespace {

// Generated from the installed torch by tools/codegen/device_check.py.
constexpr std::string_view kNoCheckOps[] = {
#include "torch_fl_generated/no_device_check.inc"
};

// Arguments that a device backend takes from the CPU whatever their size. `*` stands for all arguments.
struct FreeArgument {
  std::string_view op;        // without the overload: all overloads
  std::string_view argument;
};
constexpr FreeArgument kFreeArguments[] = {
    {"aten::copy_", "*"},
    {"aten::copy", "*"},
    {"aten::_copy_from", "*"},
    {"aten::_copy_from_and_resize", "*"},
    {"aten::_foreach_copy_", "*"},
    {"aten::index", "indices"},
    {"aten::_unsafe_index", "indices"},
    {"aten::index_put", "indices"},
    {"aten::index_put_", "indices"},
    {"aten::_index_put_impl_", "indices"},
    {"aten::_unsafe_index_put", "indices"},
    {"aten::_unsafe_masked_index", "indices"},
    {"aten::_unsafe_masked_index_put_accumulate", "indices"},
    {"aten::_ctc_loss", "input_lengths"},
    {"aten::_ctc_loss", "target_lengths"},
    {"aten::_ctc_loss_backward", "input_lengths"},
    {"aten::_ctc_loss_backward", "target_lengths"},
    {"aten::_pack_padded_sequence", "lengths"},
    {"aten::_pack_padded_sequence_backward", "batch_sizes"},
    {"aten::_pad_packed_sequence", "batch_sizes"},
    {"aten::lstm", "batch_sizes"},
    {"aten::gru", "batch_sizes"},
    {"aten::tensor_split", "tensor_indices_or_sections"},
    {"aten::set_", "*"},
};

std::string_view BaseName(std::string_view op) { return op.substr(0, op.find('.')); }

}  // namespace

bool AcceptsCpuScalars(const std::string& op) {
  if (op.rfind("aten::", 0) != 0) return true;
  static const std::unordered_set<std::string_view> no_check(std::begin(kNoCheckOps), std::end(kNoCheckOps));
  return no_check.count(op) != 0;
}

bool AcceptsCpuTensor(const std::string& op, const std::string& argument) {
  return std::any_of(std::begin(kFreeArguments), std::end(kFreeArguments), [&](const FreeArgument& free) {
    return (free.op == op || free.op == BaseName(op)) && (free.argument == "*" || free.argument == argument);
  });
}

void RaiseMixedDevices(const std::string& op, const std::string& argument, const at::Tensor& offender,
                       c10::Device common, bool iterator_style) {
  if (!iterator_style) c10::impl::common_device_check_failure(common, offender, op.c_str(), argument.c_str());
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", common, " and ",
              offender.device(), "! (argument ", argument, " of ", op, ")");
}

}  // namespace torch_fl
