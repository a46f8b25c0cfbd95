// Command cdi-loader does with CDI specs what containerd and CRI-O do, with the library that they use. For each line of
// standard input, a JSON string with the content of a spec file, it writes one line: why the library refuses the spec,
// or what a container gets that asks for all of its devices. Nothing else can say that a runtime takes a spec: CDI's
// JSON schema allows what the library refuses.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Answer is what became of one spec.
type Answer struct {
	Refused string    `json:"refused,omitempty"`
	Spec    *oci.Spec `json:"spec,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var content string
		if err := questions.Decode(&content); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer, err := answer(content)
		if err != nil {
			return err
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

func answer(content string) (Answer, error) {
	directory, err := os.MkdirTemp("", "cdi-loader-")
	if err != nil {
		return Answer{}, err
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "vendor.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return Answer{}, err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directory), cdi.WithAutoRefresh(false))
	if err != nil {
		return Answer{}, err
	}
	if refused := errors.Join(cache.GetErrors()[path]...); refused != nil {
		return Answer{Refused: refused.Error()}, nil
	}
	spec := &oci.Spec{}
	if _, err := cache.InjectDevices(spec, cache.ListDevices()...); err != nil {
		return Answer{Refused: err.Error()}, nil
	}
	return Answer{Spec: spec}, nil
}
