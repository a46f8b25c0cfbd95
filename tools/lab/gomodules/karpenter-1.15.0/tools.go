//go:build tools

// Package tools names the programs that the cluster lab builds from this module.
package main

import (
	_ "sigs.k8s.io/karpenter/kwok"
)
