# SPDX-License-Identifier: Apache-2.0
"""The `torch-fl` command line: one module a command."""
