// The checker tells what Kubernetes makes of device metadata files: one JSON string (a file's content) a line on standard
// input, one JSON answer a line on standard output. It is built against the modules of the Kubernetes version in question.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

type answer struct {
	// Why the file is none, or "".
	Refused string `json:"refused"`
	// API version and kind that the library took.
	Version string `json:"version"`
	// Where containers see it, by the library's own functions.
	Path string `json:"path"`
}

func check(content string) answer {
	// The library ignores unknown fields; a file of ours has none.
	strict := json.NewDecoder(bytes.NewReader([]byte(content)))
	strict.DisallowUnknownFields()
	var versioned v1beta1.DeviceMetadata
	if err := strict.Decode(&versioned); err != nil {
		return answer{Refused: err.Error()}
	}
	var internal metadata.DeviceMetadata
	var invalid error
	var version schema.GroupVersionKind
	decoder := json.NewDecoder(bytes.NewReader([]byte(content)))
	err := devicemetadata.DecodeMetadataFromStream(decoder, &internal,
		devicemetadata.DecodeMetadataWithValidationResult(&invalid),
		devicemetadata.DecodeMetadataStoreGVKResult(&version))
	if err == nil {
		err = invalid
	}
	if err != nil {
		return answer{Refused: err.Error()}
	}
	driver, request := internal.Requests[0].Devices[0].Driver, internal.Requests[0].Name
	if base, _, found := bytes.Cut([]byte(request), []byte("/")); found {
		request = string(base)
	}
	path := metadata.ResourceClaimFilePath(driver, internal.Name, request)
	if internal.PodClaimName != nil {
		path = metadata.ResourceClaimTemplateFilePath(driver, *internal.PodClaimName, request)
	}
	return answer{Version: version.GroupVersion().String(), Path: path}
}

func main() {
	questions := bufio.NewScanner(os.Stdin)
	questions.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for questions.Scan() {
		var content string
		if err := json.Unmarshal(questions.Bytes(), &content); err != nil {
			log.Fatal(err)
		}
		if err := answers.Encode(check(content)); err != nil {
			log.Fatal(err)
		}
	}
}
