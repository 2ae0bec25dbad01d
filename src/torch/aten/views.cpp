// SPDX-License-Identifier: Apache-2.0
// Views: metadata only, so ATen's own kernels serve any device and nothing is aliased.
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include "torch/aten/register.h"

namespace torch_fl {

void RegisterViews() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("view", TORCH_FN(at::native::view));
  library->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library->impl("unfold", TORCH_FN(at::native::unfold));
  library->impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library->impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

void RegisterOwnedOps() {
  RegisterFactories();
  RegisterViews();
  RegisterStorageOps();
  RegisterCopies();
}

}  // namespace torch_fl
