//go:build tools

// Package tools names the programs that the cluster lab builds from this module.
package tools

import (
	_ "sigs.k8s.io/krew/cmd/krew"
)
