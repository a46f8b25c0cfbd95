//go:build tools

// Package tools names the program that the cluster lab builds from this module.
package tools

import (
	_ "github.com/rhysd/actionlint/cmd/actionlint"
)
