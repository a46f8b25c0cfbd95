#!/usr/bin/env bash
# The vendor's documentation calls the installer by this path.
exec "$(dirname "${BASH_SOURCE[0]}")/../../scripts/install-dra-driver.sh" "$@"
