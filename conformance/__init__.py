# SPDX-License-Identifier: Apache-2.0
"""Suites that prove a device: see README.md."""
