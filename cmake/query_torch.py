# SPDX-License-Identifier: Apache-2.0
"""Print what CMake must know about the installed torch: version;folder;cxx11 ABI (0 or 1);extension suffix."""

import os
import sys
import sysconfig

# Autoloading would import torch_fl, which is about to be built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
# pip's isolated build environment hides the environment that it installs into, but its torch is the one to build for.
sys.path += [path for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if path not in sys.path]

import torch  # noqa: E402

print(
    torch.__version__,
    os.path.dirname(torch.__file__),
    int(torch.compiled_with_cxx11_abi()),
    sysconfig.get_config_var("EXT_SUFFIX"),
    sep=";",
)
