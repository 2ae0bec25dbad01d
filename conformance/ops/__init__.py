# SPDX-License-Identifier: Apache-2.0
"""Operator, module, optimizer and foreach suites."""
